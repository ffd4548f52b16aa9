"""A job is a directory: `job.json` with OpenAI's fields, the examples, losses, events and checkpoints.

One process writes at a time: the one that holds the lock. `cancel` leaves a file that this process looks for.
Tested in tests/cpu/test_finetuning.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from python_backends.finetuning.datasets import Example
from python_backends.finetuning.files import read_lines, write_directory, write_whole
from python_backends.nouns.training import AdapterShape
from python_backends.prediction.place import digest_of
from python_backends.settings import ROOT, Settings

ENDED = ("succeeded", "failed", "cancelled")


class JobError(ValueError):
    """There is no such job, or it can't do this now. The message names it."""


def jobs_directory(settings: Settings) -> Path:
    """Of the served checkpoint."""
    model = settings.model_directory.resolve()
    return ROOT / settings.finetuning.directory / f"{model.name}-{digest_of(model)[:8]}"


class Job:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fields: dict[str, Any] = {}
        self._read()

    @property
    def fields(self) -> dict[str, Any]:
        """Those of job.json, a copy."""
        return json.loads(json.dumps(self._fields))  # type: ignore[no-any-return]

    @property
    def id(self) -> str:
        return str(self._fields["id"])

    @property
    def status(self) -> str:
        return str(self._fields["status"])

    @property
    def is_alone(self) -> bool:
        """It is trained by the process that made it, not by a server."""
        return bool(self._fields["gapless"].get("alone", False))

    @property
    def options(self) -> dict[str, Any]:
        """What OpenAI has no field for: rank, alpha, targets, learning rate, steps."""
        return dict(self._fields["gapless"])

    @property
    def shape(self) -> AdapterShape:
        options = self._fields["gapless"]
        return AdapterShape(options["rank"], options["alpha"], tuple(options["targets"]))

    def change(self, **fields: Any) -> None:
        self._fields |= fields
        write_whole(self.directory / "job.json", json.dumps(self._fields, indent=2) + "\n")

    def end(self, status: str, message: str, **fields: Any) -> None:
        """`status` is one of ENDED."""
        self.change(status=status, finished_at=int(time.time()), estimated_finish=None, **fields)
        self.say(message, "error" if status == "failed" else "info")

    def fail(self, code: str, message: str) -> None:
        self.end("failed", message, error={"code": code, "message": message, "param": None})

    def say(self, message: str, level: str = "info") -> None:
        """One more event."""
        event = {
            "object": "fine_tuning.job.event",
            "id": f"ftevent-{secrets.token_hex(8)}",
            "created_at": int(time.time()),
            "level": level,
            "message": message,
            "type": "message",
        }
        _append(self.directory / "events.jsonl", event)

    @property
    def events(self) -> list[dict[str, Any]]:
        return read_lines(self.directory / "events.jsonl")

    @property
    def losses(self) -> list[dict[str, Any]]:
        return read_lines(self.directory / "losses.jsonl")

    def add_loss(self, **line: float) -> None:
        _append(self.directory / "losses.jsonl", line)

    def mend(self, num_steps: int) -> int:
        """After a process was killed: drops lines that it had not finished, and losses of steps after
        `num_steps`, which will be computed again. Returns how many tokens these had.
        """
        found = self.losses
        losses = [line for line in found if line["step"] <= num_steps]
        for name, lines in (("losses", losses), ("events", self.events)):
            text = "".join(json.dumps(line) + "\n" for line in lines)
            write_whole(self.directory / f"{name}.jsonl", text)
        return sum(int(line["tokens"]) for line in found if line["step"] > num_steps)

    @property
    def examples(self) -> list[Example]:
        arrays = load_file(self.directory / "examples.safetensors")
        ids, learned = (np.split(arrays[name], arrays["bounds"][1:-1]) for name in ("ids", "learned"))
        return [Example(each, mask != 0) for each, mask in zip(ids, learned, strict=True)]

    @property
    def is_cancel_asked(self) -> bool:
        return (self.directory / "cancel").exists()

    def cancel(self) -> None:
        """At once if no process trains it, else after the step that is computed. JobError if it has ended."""
        self.check_open()
        (self.directory / "cancel").touch()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self.locked())
            except JobError:
                return  # the process that trains it ends it
            self.check_open()
            self.end("cancelled", "cancelled")

    def check_open(self) -> None:
        """JobError if it has ended."""
        if self.status in ENDED:
            raise JobError(f"{self.id}: it has ended already ({self.status})")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No other process changes the job meanwhile. Its fields are read again: one may have done so since
        they were read. JobError if another process has it.
        """
        with (self.directory / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise JobError(f"{self.id}: another process trains it") from error
            self._read()
            yield

    def _read(self) -> None:
        try:
            self._fields = json.loads((self.directory / "job.json").read_text())
        except (OSError, ValueError) as error:
            raise JobError(
                f"{self.directory.name}: no such job in {self.directory.parent} (`list` shows all)"
            ) from error


def create(parent: Path, examples: Sequence[Example], fields: dict[str, Any]) -> Job:
    """A queued job below `parent` with OpenAI's fields and those of `fields`."""
    job_id = f"ftjob-{secrets.token_hex(8)}"
    standard = {
        "id": job_id,
        "object": "fine_tuning.job",
        "created_at": int(time.time()),
        "finished_at": None,
        "status": "queued",
        "error": None,
        "estimated_finish": None,
        "fine_tuned_model": None,
        "organization_id": "",
        "result_files": [],
        "trained_tokens": None,
        "validation_file": None,
    }
    arrays = {
        "ids": np.concatenate([example.ids for example in examples]),
        "learned": np.concatenate([example.learned for example in examples]).astype(np.uint8),
        "bounds": np.cumsum([0, *(len(example.ids) for example in examples)]),
    }

    def write(directory: Path) -> None:
        save_file(arrays, directory / "examples.safetensors")
        (directory / "job.json").write_text(json.dumps(standard | fields, indent=2) + "\n")

    write_directory(parent / job_id, write)
    return Job(parent / job_id)


def all_jobs(parent: Path) -> list[Job]:
    """The newest first."""
    found = [Job(path.parent) for path in parent.glob("ftjob-*/job.json") if path.parent.suffix != ".partial"]
    return sorted(found, key=lambda job: (job.fields["created_at"], job.id), reverse=True)


def find(parent: Path, job_id: str) -> Job:
    """JobError if there is none."""
    if Path(job_id).name != job_id:
        raise JobError(f"{job_id}: must be the id of a job, as `list` shows it")
    return Job(parent / job_id)


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
