"""A job is a directory: `job.json` with OpenAI's fields, the examples, losses, events and saved states.

One process writes at a time: the one that holds the lock. `cancel` leaves a file that this process looks for.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import save_file

from python_backends.checkpoint.places import SHORT, place_of
from python_backends.finetuning import ask_files, examples
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.examples import Examples
from python_backends.finetuning.files import append_line, read_arrays, read_lines
from python_backends.finetuning.job_fields import MAX_JOB_BYTES, checked
from python_backends.linux.files import locked_file, write_directory, write_whole
from python_backends.linux.regular_files import read_regular
from python_backends.nouns.training import AdapterShape
from python_backends.settings import Settings

log = logging.getLogger("gapless.finetuning")

START = "start.safetensors"
EVENT = {"created_at": int | float, "message": str}  # what is read of a line
ADAPTER = {"adapter": str}
LOSS = {"step": int, "loss": int | float, "tokens": int}
ENDED = ("succeeded", "failed", "cancelled")


class JobError(ValueError):
    """There is no such job, or it can't do this now. The message names it."""


def jobs_directory(settings: Settings) -> Path:
    """Of the served checkpoint."""
    return place_of(settings.finetuning_directory, settings.model_directory, SHORT)


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
    def order(self) -> tuple[int, str]:
        """The oldest first."""
        return int(self._fields["created_at"]), self.id

    @property
    def status(self) -> str:
        return str(self._fields["status"])

    @property
    def is_alone(self) -> bool:
        """It is trained by the process that made it, not by a server."""
        return bool(self._fields["gapless"].get("alone", False))

    @property
    def is_asked(self) -> bool:
        """Its examples and steps come from a caller, one ask after the other (`asks`)."""
        return bool(self._fields["gapless"].get("asked", False))

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
        self._append("events", event)

    @property
    def events(self) -> list[dict[str, Any]]:
        return self._lines("events", EVENT)

    @property
    def losses(self) -> list[dict[str, Any]]:
        return self._lines("losses", LOSS)

    @property
    def adapters(self) -> set[str]:
        """What it has published and outlives it, as name@version."""
        found = {str(line["adapter"]) for line in self._lines("adapters", ADAPTER)}
        return found | {str(self.options["adapter"])} if self.options.get("adapter") else found

    def add_adapter(self, adapter: str) -> None:
        self._append("adapters", {"adapter": adapter})

    def add_loss(self, **line: float) -> None:
        self._append("losses", line)

    def mend(self, num_steps: int) -> int:
        """After a process was killed: drops losses of steps after `num_steps`, which will be computed again.
        Returns how many tokens these had.
        """
        found = self.losses
        losses = [line for line in found if line["step"] <= num_steps]
        if len(losses) < len(found):
            text = "".join(json.dumps(line) + "\n" for line in losses)
            write_whole(self.directory / "losses.jsonl", text)
        return sum(int(line["tokens"]) for line in found if line["step"] > num_steps)

    def _append(self, name: str, line: dict[str, Any]) -> None:
        """A line that can't be written, as on a full disk, is missing; the job goes on."""
        try:
            append_line(self.directory / f"{name}.jsonl", line)
        except OSError as error:
            log.warning("%s: a line of %s.jsonl is missing: %s", self.id, name, error)

    def _lines(self, name: str, kinds: Mapping[str, type | UnionType]) -> list[dict[str, Any]]:
        """Those that have what is read of them."""
        lines = read_lines(self.directory / f"{name}.jsonl")
        return [line for line in lines if all(isinstance(line.get(key), kinds[key]) for key in kinds)]

    @property
    def examples(self) -> Examples:
        """As they are on the disk now. Raises OSError and ValueError."""
        return examples.read(self.directory / examples.FILE)

    @property
    def held_out(self) -> Examples | None:
        """Those that are not learned; None: there are none. Raises OSError and ValueError."""
        path = self.directory / examples.HELD_OUT
        return examples.read(path) if path.exists() else None

    @property
    def held_out_losses(self) -> list[float]:
        """Of the held-out examples before the first step, and after the last one: what is known of them."""
        return list(self._fields["gapless"].get("held_out_losses", []))

    def add_held_out_loss(self, loss: float) -> None:
        self.change(gapless={**self.options, "held_out_losses": [*self.held_out_losses, loss]})
        self.say(f"the loss of the held-out examples is {loss:.4g}")

    @property
    def start(self) -> dict[str, NDArray[Any]] | None:
        """The weights with which it begins; None: they are drawn. Raises OSError and ValueError."""
        return read_arrays(self.directory / START) if self.options.get("from") else None

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

    def delete(self) -> None:
        """Its directory. What it has published stays. JobError if it has not ended. Raises OSError."""
        with self.locked():
            if self.status not in ENDED:
                raise JobError(f"{self.id}: it has not ended ({self.status}): `cancel` ends it")
            gone = self.directory.rename(self.directory.with_name(f"{self.id}.partial"))
        shutil.rmtree(gone)

    def check_open(self) -> None:
        """JobError if it has ended."""
        if self.status in ENDED:
            raise JobError(f"{self.id}: it has ended already ({self.status})")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No other process changes the job meanwhile. Its fields are read again: one may have done so since
        they were read. JobError if another process has it.
        """
        file = locked_file(self.directory / "lock")
        if file is None:
            raise JobError(f"{self.id}: another process trains it")
        with file:
            self._read()
            yield

    def _read(self) -> None:
        path = self.directory / "job.json"
        try:
            self._fields = checked(read_regular(path, MAX_JOB_BYTES), self.directory.name)
        except FileNotFoundError as error:
            raise JobError(
                f"{self.directory.name}: no such job in {self.directory.parent} (`list` shows all)"
            ) from error
        except (OSError, ValueError) as error:
            raise JobError(f"{self.directory.name}: job.json: {error}") from error


def create(
    parent: Path,
    data: list[Example] | None,
    fields: dict[str, Any],
    start: Mapping[str, NDArray[Any]] | None = None,
    held_out: list[Example] | None = None,
) -> Job:
    """A queued job below `parent` with OpenAI's fields and those of `fields`. `data`: None for a job whose
    examples come from a caller, which `fields` says, too. `start`: the weights with which
    it begins, if they are not drawn. `held_out`: examples that it does not learn. Only this user may read it.
    """
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

    def write(directory: Path) -> None:
        directory.chmod(0o700)
        if data is None:
            ask_files.make_places(directory)
        else:
            examples.write(directory / examples.FILE, data)
        if held_out:
            examples.write(directory / examples.HELD_OUT, held_out)
        if start:
            save_file(dict(start), directory / START)
        (directory / "job.json").write_text(json.dumps(standard | fields, indent=2) + "\n")

    write_directory(parent / job_id, write)
    return Job(parent / job_id)


def all_jobs(parent: Path) -> list[Job]:
    """The newest first."""
    return sorted(read_jobs(parent, _warn), key=lambda job: job.order, reverse=True)


def read_jobs(
    parent: Path, tell: Callable[[str, str], None], known: Container[str] = frozenset()
) -> list[Job]:
    """The jobs of a directory but those with a `known` id. `tell` gets the id of each that can't be read, and
    why.
    """
    found = []
    for path in parent.glob("ftjob-*"):
        if path.name in known or path.suffix == ".partial":
            continue
        try:
            found.append(Job(path))
        except JobError as error:
            tell(path.name, str(error))
    return found


def _warn(job_id: str, message: str) -> None:
    log.warning("%s", message)


def find(parent: Path, job_id: str) -> Job:
    """JobError if there is none."""
    if Path(job_id).name != job_id:
        raise JobError(f"{job_id}: must be the id of a job, as `list` shows it")
    return Job(parent / job_id)
