"""Whether requests can be answered now."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from client.async_client import AsyncClient
from front.model import Model
from python_backends.launcher.readiness import SAY_EVERY_S, path_of
from python_backends.watching.board import instance_name
from python_backends.watching.instance_state import InstanceRecord, State
from python_backends.watching.launcher_record import is_draining

LONGEST_SILENCE_S = 2 * SAY_EVERY_S
LOOK_EVERY_S = 0.5
# beats come twice a second; of an instance after each step, so it may be silent for two of its longest
LONGEST_BEAT_S = 3.0
ANSWER_S = 2.0  # Triton answers from memory
STUBS = ("tokenizer", "scheduler", "detokenizer")


def is_up(run_directory: Path, http_port: int) -> bool:
    """Whether Triton and its models answer: the launcher says so every few seconds."""
    try:
        said_s = path_of(run_directory, http_port).stat().st_mtime
    except OSError:
        return False
    return time.time() - said_s < LONGEST_SILENCE_S


def is_healthy(run_directory: Path, http_port: int, model: Model) -> bool:
    """Triton answers, an instance is ready, and the server is not about to end."""
    return is_up(run_directory, http_port) and model.has_instance and not is_draining(model.board)


class Health:
    """What the launcher says, and sooner than it what has stopped: `watch` looks at the beats of all
    processes that an answer needs, and asks Triton.
    """

    def __init__(self, run_directory: Path, http_port: int, model: Model, client: AsyncClient) -> None:
        self._run_directory = run_directory
        self._http_port = http_port
        self._model = model
        self._client = client
        self._signs: dict[str, int] = {}
        self._changed_s: dict[str, float] = {}  # when the sign of each process was seen to change
        self._answered_s = time.monotonic()
        self._is_watched = False

    def is_healthy(self) -> bool:
        if not is_healthy(self._run_directory, self._http_port, self._model):
            return False
        return not self._is_watched or not self._stopped()

    async def watch(self) -> None:
        """Never returns."""
        await asyncio.gather(self._look(), self._ask())

    def look(self) -> None:
        """At the beats of all processes. To be called twice a second."""
        now_s = time.monotonic()
        instances = [instance_name(number) for number in range(self._model.num_instances)]
        for name in (*STUBS, *instances):
            sign = self._model.board.sign(name)
            if sign != self._signs.get(name):
                self._signs[name], self._changed_s[name] = sign, now_s
        self._is_watched = True

    def answered(self) -> None:
        """Triton has answered."""
        self._answered_s = time.monotonic()

    async def _look(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _ask(self) -> None:
        while True:
            try:
                if await asyncio.wait_for(self._client.is_ready(), ANSWER_S):
                    self.answered()
            except TimeoutError:
                pass
            await asyncio.sleep(LOOK_EVERY_S)

    def _stopped(self) -> bool:
        """Whether something that an answer needs has stopped. Of several instances, one has to go on."""
        now_s = time.monotonic()
        if now_s - self._answered_s > ANSWER_S + 2 * LOOK_EVERY_S:
            return True
        if any(now_s - self._changed_s[name] > LONGEST_BEAT_S for name in STUBS):
            return True
        return not any(self._goes_on(number, now_s) for number in range(self._model.num_instances))

    def _goes_on(self, number: int, now_s: float) -> bool:
        record = InstanceRecord(self._model.board, number)
        if record.read()[0] is not State.READY:
            return False
        silent_s = now_s - self._changed_s[instance_name(number)]
        return silent_s <= max(LONGEST_BEAT_S, 2 * record.longest_step_s())
