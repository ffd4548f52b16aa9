"""What clients of Tinker's interface have open: sessions with models in training, samplers and samples. It
lives as long as the front; what a session has ends with it, and a session ends when it is not heard of.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from front.errors import ProblemError
from front.tinker.training import Trained
from python_backends.finetuning import ask_files
from python_backends.finetuning.jobs import ENDED, Job, JobError

SILENT_S = 120.0  # clients show that they live every 10 s
LOOK_EVERY_S = 5.0
MOST_SESSIONS, MOST_MODELS = 64, 16  # of a server
# of a session; of what is done, the oldest is forgotten first
MOST_SAMPLERS, MOST_SAMPLES = 256, 4096

T = TypeVar("T")
Sampled = bytes | ProblemError


@dataclass(frozen=True, slots=True)
class Sampler:
    adapter: str  # empty: the model itself
    model_path: str | None


@dataclass(slots=True)
class Session:
    id: str
    heard_s: float
    models: dict[str, Trained] = field(default_factory=dict)
    samplers: dict[str, Sampler] = field(default_factory=dict)
    samples: dict[str, asyncio.Task[Sampled]] = field(default_factory=dict)  # by request

    def add_sampler(self, number: int | None, sampler: Sampler) -> str:
        """Returns its name."""
        name = f"{self.id}:sample:{number}"
        self.samplers.setdefault(name, sampler)
        if len(self.samplers) > MOST_SAMPLERS:
            del self.samplers[next(iter(self.samplers))]
        return name

    def begin_sample(self, name: str, work: Callable[[], Coroutine[Any, Any, Sampled]]) -> None:
        """Unless it was begun before. Raises ProblemError."""
        if name in self.samples:
            return
        if len(self.samples) >= MOST_SAMPLES:
            oldest = next((each for each, task in self.samples.items() if task.done()), None)
            if oldest is None:
                said = f"{MOST_SAMPLES} samples of this session are open; try again later"
                raise ProblemError(429, said, "too_many_requests", kind="rate_limit_error")
            del self.samples[oldest]
        # in a context of its own: it is no work for the request that asks for it
        self.samples[name] = asyncio.get_running_loop().create_task(work(), context=Context())


class Sessions:
    def __init__(self, adapters: Path | None) -> None:
        self._adapters = adapters
        self._open: dict[str, Session] = {}

    def begin(self) -> Session:
        """Raises ProblemError."""
        if len(self._open) >= MOST_SESSIONS:
            said = f"{MOST_SESSIONS} sessions are open; try again later"
            raise ProblemError(429, said, "too_many_sessions", kind="rate_limit_error")
        session = Session(f"tinker-{secrets.token_hex(8)}", time.monotonic())
        self._open[session.id] = session
        return session

    def find(self, name: str) -> Session:
        """That of a session, a model, a sampler or a request. Raises ProblemError."""
        session = self._open.get(name.partition(":")[0])
        if session is None:
            said = f"{name[:64]!r}: its session has ended, or never was"
            raise ProblemError(410, said, "session_has_ended")
        return session

    def model(self, name: str) -> Trained:
        """Raises ProblemError."""
        return _in(self.find(name).models, name)

    def sampler(self, name: str) -> Sampler:
        """Raises ProblemError."""
        return _in(self.find(name).samplers, name)

    def check_models(self) -> None:
        """Raises ProblemError if no more can be trained."""
        if sum(len(session.models) for session in self._open.values()) >= MOST_MODELS:
            said = f"{MOST_MODELS} models are trained already; end a session first"
            raise ProblemError(400, said, "too_many_models")

    def hear(self, name: str) -> None:
        """Its client lives. Raises ProblemError."""
        session = self.find(name)
        session.heard_s = time.monotonic()
        for model in session.models.values():
            ask_files.show_life(model.job.directory)

    async def end(self, session: Session) -> None:
        self._open.pop(session.id, None)
        for task in session.samples.values():
            task.cancel()
        for model in session.models.values():
            await asyncio.to_thread(self._end_job, model.job)

    async def run(self) -> None:
        """Ends what is not heard of, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            limit_s = time.monotonic() - SILENT_S
            for session in [each for each in self._open.values() if each.heard_s < limit_s]:
                await self.end(session)

    def _end_job(self, job: Job) -> None:
        with contextlib.suppress(OSError, JobError):  # it has ended by itself
            Job(job.directory).cancel()
        with contextlib.suppress(OSError, JobError):
            if Job(job.directory).status in ENDED:  # no instance has it, which would do this
                ask_files.forget(job.directory, self._adapters)


def _in(found: dict[str, T], name: str) -> T:
    if name not in found:
        raise ProblemError(404, f"{name[:64]!r}: there is no such model or sampler", "not_found")
    return found[name]
