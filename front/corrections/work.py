"""Gives corrections to a fine-tuning job when there are enough new ones. The job serves its adapter only if
the loss of those held out falls (`--held-out`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import msgspec

from front.corrections.store import Correction, Corrections, Learned
from front.fine_tuning.submit import Submitting
from front.model import Model
from python_backends.finetuning.jobs import ENDED, Job, JobError, jobs_directory
from python_backends.linux.files import write_private
from python_backends.settings import Settings

log = logging.getLogger("gapless.front")

ADAPTER = "corrected"
LEARNED, HELD_OUT = "corrections.jsonl", "held_out.jsonl"
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
            before = int(time.time()) - 1  # what is written now may have the second before
            found = await asyncio.to_thread(self._due, before)
            if found:
                self._corrections.note(Learned(await self._submit(found), before))

    def _due(self, before: int) -> list[Correction]:
        """If a job is to be made now, all that were made before the second `before`, else none."""
        found = new = [each for each in self._corrections.all() if each.created_at < before]
        if len(found) < self._settings.front.corrections or len({each.held_out for each in found}) < 2:
            return []
        if (last := self._corrections.learned()) is not None:
            new = [each for each in found if each.created_at >= last.before]
        is_due = len(new) >= self._settings.front.corrections
        return found if is_due and (last is None or self._has_ended(last.job)) else []

    def _has_ended(self, name: str) -> bool:
        """Also a job that was deleted, or can't be read."""
        try:
            return Job(jobs_directory(self._settings) / name).status in ENDED
        except JobError:
            return True

    async def _submit(self, found: list[Correction]) -> str:
        """Returns the new job's id. Raises ProblemError and OSError."""
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
        job: str = fields["id"]
        log.info("%s: %d corrections for the adapter %s", job, len(found), ADAPTER)
        return job


def _write(path: Path, corrections: list[Correction]) -> None:
    """As training data, the oldest first."""
    lines = [msgspec.json.encode(each.example) + b"\n" for each in reversed(corrections)]
    write_private(path, b"".join(lines))
