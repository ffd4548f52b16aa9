"""The loops that `host_time` measures: the instance's own with the toy engine, and the cost of a long
queue.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from python_backends.engine.protocol import Engine
from python_backends.instance.build import build
from python_backends.instance.loop import Instance
from python_backends.nouns.request import Feedback, Finish, ModelLimits, Request, Sampling
from python_backends.nouns.step import Started, StepOutput, StepPlan, Tokens
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import EngineSettings, Settings, StreamSettings
from python_backends.streams.table import StreamTable
from python_backends.watching.metrics import Metrics
from python_backends.wires.sessions import InstanceEnd, NewSession, SchedulerEnd
from tests.support.toy_engine import TOY

NOTHING = np.zeros(0, np.int32)
# of 32 tokens; the longest answer fills 64, and admission leaves a twentieth of all blocks free
BLOCKS_A_SLOT = 72
PROMPT_TOKENS = 4
SWEPT_BYTES = 64 << 20
STEP_S = 0.025  # the toy engine takes 15 ms for 1,024 slots; a sweep 4
QUEUE_SLOTS = 16
QUEUE_PROMPT_TOKENS = 64
PRIORITIES = 10


class NoEngine:
    """Makes tokens without computing, so that the caches keep the loop's data."""

    plans_steps = False

    def __init__(self, engine: Engine) -> None:
        self.limits = engine.limits
        self._plans: deque[StepPlan] = deque()

    def launch(self, plan: StepPlan) -> None:
        self._plans.append(plan)

    def collect(self) -> StepOutput:
        plan = self._plans.popleft()
        count = int(plan.samples.sum())
        return StepOutput(plan.number, np.ones(count, np.int32), np.zeros(count, np.uint8))

    def close(self) -> None: ...


class SweepingEngine:
    """Calls `engine`. If `sweeps` is set, it then uses the caches as a forward pass does: it reads and writes
    memory larger than the caches until the step has taken STEP_S in total. Records the plan and the processor
    time inside.
    """

    plans_steps = False

    def __init__(self, engine: Engine) -> None:
        self.limits = engine.limits
        self.plan: StepPlan | None = None  # the latest
        self.inside_s = 0.0
        self.sweeps = False
        self._launched_s = 0.0
        self._engine = engine
        self._memory = np.zeros(SWEPT_BYTES // 8)

    def launch(self, plan: StepPlan) -> None:
        began_s = time.thread_time()
        self.plan, self._launched_s = plan, time.monotonic()
        self._engine.launch(plan)
        self.inside_s += time.thread_time() - began_s

    def collect(self) -> StepOutput:
        began_s = time.thread_time()
        output = self._engine.collect()
        while self.sweeps and time.monotonic() - self._launched_s < STEP_S:
            self._memory += 1.0
        self.inside_s += time.thread_time() - began_s
        return output

    def close(self) -> None:
        self._engine.close()


@contextmanager
def link_to_a_reader(engine: Engine) -> Iterator[InstanceEnd]:
    """Yields an instance's end of the wire; a process at the other end reads all messages."""
    with tempfile.TemporaryDirectory() as directory:
        reader = multiprocessing.get_context("spawn").Process(
            target=_read, args=(Path(directory),), daemon=True
        )
        reader.start()
        link = InstanceEnd(Path(directory), "instance-0", engine.limits)
        try:
            while not any(isinstance(news, NewSession) for news in link.receive(1.0)):
                assert reader.is_alive(), "the reader has ended"
            yield link
        finally:
            link.close()
            reader.terminate()
            reader.join()


def _read(directory: Path) -> None:
    link = SchedulerEnd(directory, dead_after_s=600)
    while True:
        link.receive(1.0)


class SteadyLoop:
    """An instance whose `slots` all decode without end, while `waiting` other requests wait for a slot."""

    def __init__(
        self, slots: int, waiting: int, link: InstanceEnd, engine: Engine, scheduler: SlotScheduler
    ) -> None:
        self._slots = slots
        self._engine = SweepingEngine(engine)
        self._instance = Instance(scheduler, self._engine, link, lambda _: None)
        for number in range(slots + waiting):
            prompt = np.full(PROMPT_TOKENS, number % 1000, np.int32)
            scheduler.submit(Request(number, prompt, Sampling(max_tokens=1 << 20)), NOTHING)
        while not self._turn()[1]:
            assert not scheduler.is_idle, f"{slots} slots never decoded together"

    def steady_steps(self, count: int, sweeps: bool) -> list[float]:
        """Returns the processor seconds of the loop's thread in each of `count` steady steps, without the
        engine's calls.
        """
        self._engine.sweeps = sweeps
        self._turn()  # brings the caches into this state
        spent: list[float] = []
        while len(spent) < count:
            seconds, is_steady = self._turn()
            if is_steady:
                spent.append(seconds)
        return spent

    def _turn(self) -> tuple[float, bool]:
        began_s, inside_s = time.thread_time(), self._engine.inside_s
        self._instance.turn()
        spent_s = time.thread_time() - began_s - (self._engine.inside_s - inside_s)
        plan = self._engine.plan
        assert plan is not None
        return spent_s, plan.num_decodes == self._slots and not plan.operations


@contextmanager
def steady_loop(engine: str, slots: int, waiting: int) -> Iterator[SteadyLoop]:
    """`engine`: toy or none."""
    chosen = EngineSettings(
        kind=TOY, slots=slots, kv_blocks=slots * BLOCKS_A_SLOT, token_budget=slots * 2 * PROMPT_TOKENS
    )
    scheduler, toy = build(Settings(engine=chosen))
    with link_to_a_reader(toy) as link:
        yield SteadyLoop(slots, waiting, link, toy if engine == "toy" else NoEngine(toy), scheduler)
    toy.close()


class ChangingQueue:
    """A slot scheduler alone, with `waiting` requests: at every step one request ends, another gets its slot,
    one arrives and one that waits is cancelled; priorities from 0 to 9.
    """

    def __init__(self, waiting: int) -> None:
        self._random = random.Random(1)
        self._scheduler = SlotScheduler(ModelLimits(2048, 1000, QUEUE_SLOTS, QUEUE_SLOTS * 8, 32))
        self._waiting: list[int] = []
        self._made = 0
        for _ in range(waiting + QUEUE_SLOTS):
            self._arrive()
        for _ in range(4 * QUEUE_SLOTS):
            self.turn()

    def turn(self) -> float:
        """Processor seconds of one step."""
        self._arrive()
        cancelled = self._waiting.pop(self._random.randrange(len(self._waiting)))
        started_s = time.thread_time()
        self._scheduler.cancel(cancelled)
        plan = self._scheduler.plan()
        assert plan is not None
        count = int(plan.samples.sum())
        self._scheduler.apply(
            plan, StepOutput(plan.number, np.ones(count, np.int32), np.zeros(count, np.uint8))
        )
        spent_s = time.thread_time() - started_s
        self._keep_count()
        return spent_s

    def _arrive(self) -> None:
        self._made += 1
        prompt = np.full(QUEUE_PROMPT_TOKENS, self._made % 1000, np.int32)
        sampling = Sampling(QUEUE_SLOTS)  # so one of the slots ends at every step
        self._scheduler.submit(
            Request(self._made, prompt, sampling, priority=self._random.randrange(PRIORITIES)), NOTHING
        )
        self._waiting.append(self._made)

    def _keep_count(self) -> None:
        """Replaces requests that got a slot by others that wait, so that there are always some to cancel."""
        for started in self._scheduler.take_started():
            if started.request_id in self._waiting:  # it is said again if more of a prompt is found
                self._waiting.remove(started.request_id)
                self._arrive()


class WaitingStreams:
    """A stream table with `waiting` streams without a slot, and some that get a token a step."""

    def __init__(self, waiting: int) -> None:
        settings = StreamSettings(max_open=1 << 20, max_queued_tokens=1 << 40)
        self._table = StreamTable(settings, time.monotonic_ns, lambda words: 4, Metrics())
        self._table.instance_ready(0)
        prompt = np.zeros(QUEUE_PROMPT_TOKENS, np.int32)
        for number in range(QUEUE_SLOTS + waiting):
            self._table.accept(
                Request(number, prompt, Sampling(1 << 20), stream=True, arrival_ns=time.monotonic_ns()), None
            )
        self._table.outbox()
        for number in range(QUEUE_SLOTS):
            self._table.started(Started(number, 0, 0))
        self._index = 0

    def turn(self) -> float:
        """Returns the processor seconds for one step's tokens, with the messages that are sent."""
        ones = np.ones(QUEUE_SLOTS, np.int32)
        rows: Any = np.arange(QUEUE_SLOTS, dtype=np.int64)
        started_s = time.thread_time()
        self._table.tokens(
            Tokens(rows, 0 * ones, self._index * ones, ones, np.full(QUEUE_SLOTS, Finish.RUNNING, np.uint8))
        )
        self._table.outbox()
        for outgoing in self._table.due():
            assert outgoing.window is not None
            self._table.feedback(
                Feedback(outgoing.request_id, outgoing.window.start + len(outgoing.window.tokens))
            )
        self._table.wait_s()
        self._index += 1
        return time.thread_time() - started_s
