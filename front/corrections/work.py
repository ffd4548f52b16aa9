"""Gives corrections to a fine-tuning job when there are enough new ones. The job serves its adapter only if
the loss of those held out falls (`--held-out`).
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec

from front.corrections.store import Correction, Corrections
from front.fine_tuning.submit import Submitting
from front.model import Model
from python_backends.finetuning.jobs import ENDED, jobs_directory, read_jobs
from python_backends.linux.files import write_private
from python_backends.settings import Settings

log = logging.getLogger("gapless.front")

ADAPTER = "corrected"
LEARNED, HELD_OUT = "corrections.jsonl", "held_out.jsonl"  # the first tells which jobs are of corrections
TRAINING = ("--epochs=8", "--learning-rate=1e-3")  # few examples, of which each is to be learned
LOOK_EVERY_S = 5.0
AGAIN_S = 300.0  # after no job could be made


class CorrectionWork:
    def __init__(
        self, settings: Settings, model: Model, corrections: Corrections, submitting: Submitting
    ) -> None:
        self._settings = settings
        self._model = model
        self._corrections = corrections
        self._submitting = submitting

    async def run(self) -> None:
        """Until it is cancelled, or at once where no corrections are taken."""
        while self._settings.front.corrections:
            pause_s = LOOK_EVERY_S
            try:
                await self._look()
            except Exception as error:
                log.warning("corrections are not learned now: %s", error)
                pause_s = AGAIN_S
            await asyncio.sleep(pause_s)

    async def _look(self) -> None:
        if (lock := self._corrections.lock()) is None:
            return
        with lock:
            found = await asyncio.to_thread(self._due)
            if found:
                await self._submit(found)

    def _due(self) -> list[Correction]:
        """All of them if a job is to be made now, else none."""
        found = new = self._corrections.all()
        if len(found) < self._settings.front.corrections or len({each.held_out for each in found}) < 2:
            return []
        all_jobs = read_jobs(jobs_directory(self._settings), lambda job_id, message: None)
        ours = [job for job in all_jobs if job.fields.get("training_file") == LEARNED]
        if ours:
            last = max(ours, key=lambda job: job.order)
            since = last.fields["created_at"]
            new = [each for each in found if each.created_at > since] if last.status in ENDED else []
        return found if len(new) >= self._settings.front.corrections else []

    async def _submit(self, found: list[Correction]) -> None:
        """Raises ProblemError and OSError."""
        learned, held_out = (self._corrections.directory / name for name in (LEARNED, HELD_OUT))
        try:
            _write(learned, [each for each in found if not each.held_out])
            _write(held_out, [each for each in found if each.held_out])
            options = [*TRAINING, f"--name={ADAPTER}", f"--held-out={held_out}"]
            if any(adapter.name == ADAPTER for adapter in self._model.adapters):
                options.append(f"--from={ADAPTER}")
            fields = await self._submitting.submit(learned, options)
        finally:
            learned.unlink(missing_ok=True)
            held_out.unlink(missing_ok=True)
        log.info("%s: %d corrections for the adapter %s", fields["id"], len(found), ADAPTER)


def _write(path: Path, corrections: list[Correction]) -> None:
    """As training data, the oldest first."""
    lines = [msgspec.json.encode(each.example) + b"\n" for each in reversed(corrections)]
    write_private(path, b"".join(lines))
