"""The files of a job that a caller leads, as its trainer reads and writes them: asks, answers, adapters. All
but looking is done by the thread that writes files.
"""

from __future__ import annotations

import shutil
from concurrent.futures import Future

from python_backends.engine.adapter_directory import numbered
from python_backends.finetuning import ask_files, saved_states
from python_backends.finetuning.jobs import Job, JobError
from python_backends.finetuning.publish import publish_state
from python_backends.finetuning.saved_states import Place, State
from python_backends.finetuning.trainer import Files
from python_backends.nouns import asks

STATES = "states"
NUM_SHORT_LIVED = 8  # adapters that end with the job: older ones are removed


class AskedFiles:
    def __init__(self, job: Job, files: Files) -> None:
        self._job, self._files = job, files
        self._number = 1  # of the ask that is answered next

    @property
    def is_over(self) -> bool:
        """The caller has left, or wants no more of it. Raises OSError."""
        return self._job.is_cancel_asked or ask_files.is_forgotten(self._job.directory)

    @property
    def has_ask(self) -> bool:
        return ask_files.ask_path(self._job.directory, self._number).exists()

    def read(self) -> Future[asks.Ask]:
        return self._files.writer.submit(ask_files.read_ask, self._job.directory, self._number)

    def answer(self, answer: asks.Answer) -> Future[None]:
        """The next ask follows."""
        number, self._number = self._number, self._number + 1
        return self._files.writer.submit(ask_files.write_answer, self._job.directory, number, answer)

    def publish(self, name: str, state: State) -> Future[asks.Answer]:
        """`name`: empty for an adapter that ends with the job."""
        return self._files.writer.submit(self._publish, name, state)

    def save_state(self, name: str, place: Place, state: State) -> Future[asks.Answer]:
        return self._files.writer.submit(self._save_state, name, place, state)

    def read_state(self, ask: asks.LoadState) -> Future[tuple[Place, State] | asks.Refused]:
        return self._files.writer.submit(self._read_state, ask)

    def forget(self) -> None:
        """What only the caller wants."""
        self._files.writer.submit(ask_files.forget, self._job.directory, self._files.adapters)

    def _save_state(self, name: str, place: Place, state: State) -> asks.Answer:
        try:
            saved_states.save_named(self._job.directory / STATES, name, place, state)
        except OSError as error:
            return asks.Refused(f"the state can't be saved: {error.strerror or error}")
        return asks.Saved(name)

    def _read_state(self, ask: asks.LoadState) -> tuple[Place, State] | asks.Refused:
        try:
            return saved_states.read_named(self._job.directory.parent / ask.job / STATES, ask.name)
        except OSError:
            return asks.Refused(f"{ask.job} has saved no state {ask.name}, or has replaced it")
        except ValueError as error:
            return asks.Refused(f"the state {ask.name} of {ask.job} can't be read: {error}")

    def _publish(self, name: str, state: State) -> asks.Answer:
        directory = (self._files.adapters or self._job.directory) / (name or self._job.id)
        try:
            adapter = publish_state(self._job, state, directory)
        except (JobError, OSError) as error:
            return asks.Refused(f"the adapter can't be served: {error}")
        if name:
            self._job.add_adapter(adapter)
        else:
            for old in numbered(directory)[:-NUM_SHORT_LIVED]:
                shutil.rmtree(old, ignore_errors=True)
        self._files.published()
        return asks.Published(adapter)
