"""One simulated instance of `cluster.py`: the real slot scheduler and moves, with a simulated engine (a
length for each answer and a model of step time) and a simulated wire (a number of bytes a second).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from benchmarks.cluster_requests import MAX_MODEL_TOKENS, Counts
from python_backends.handover.moves import Moves
from python_backends.instance.heartbeat import HEARTBEAT_S
from python_backends.nouns.messages import Cancel, FromInstance, Hello, Predicted, Submit, ToInstance
from python_backends.nouns.moves import AbortMove, Blocks, Last, MoveOut, Nak, Reserve, Resume
from python_backends.nouns.request import Finish, Ids, ModelLimits
from python_backends.nouns.step import Admit, StepOutput, StepPlan
from python_backends.scheduling.scheduler import SlotScheduler
from python_backends.scheduling.state.sequence import Sequence as Waiting
from python_backends.settings import SchedulingSettings
from python_backends.wires.blocks import Payload
from python_backends.wires.copies import Came, Copied, HandedOver, News, Written

AS_NEEDED = "as_needed"  # admission as in vLLM: first come first served, blocks are taken when needed
RETRY_S = 0.005  # an instance with nothing to compute looks again
VOCABULARY = 1 << 30  # the tokens of a prompt are the number of its request
NO_PAYLOAD = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Machine:
    """The limits and speeds of every instance."""

    slots: int
    blocks: int
    block_tokens: int
    token_budget: int
    step_s: tuple[float, ...]  # as `step_time.FEATURES`
    block_bytes: float
    bytes_per_s: float  # from one instance to all others together
    admission: str
    max_model_tokens: int = MAX_MODEL_TOKENS

    @property
    def limits(self) -> ModelLimits:
        return ModelLimits(self.max_model_tokens, VOCABULARY, self.slots, self.blocks, self.block_tokens)

    def scheduler(self, clock: Callable[[], float]) -> SlotScheduler:
        """Returns a slot scheduler that knows the times of its steps."""
        reserve = _tokens_so_far if self.admission == AS_NEEDED else None
        policy = "fcfs" if self.admission == AS_NEEDED else self.admission
        settings = SchedulingSettings(policy=policy)
        scheduler = SlotScheduler(self.limits, self.token_budget, settings, reserve, clock)
        scheduler.outlook.step_time.coefficients = list(self.step_s)
        return scheduler


def _tokens_so_far(sequence: Waiting) -> int:
    return len(sequence.tokens) + 1


class Agenda:
    """The coming events, in order of time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def clock(self) -> float:
        return self.now_s

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), action))

    def happen(self) -> None:
        """Runs the next event."""
        self.now_s, _, action = heapq.heappop(self._events)
        action()


class Wire:
    """Sends blocks from one instance to the others, one message after the other. Copies no bytes."""

    def __init__(self, agenda: Agenda, machine: Machine, others: dict[str, Wire]) -> None:
        self.told: Callable[[], None] = lambda: None  # called when a message has arrived
        self._agenda = agenda
        self._machine = machine
        self._others = others  # by endpoint
        self._news: deque[News] = deque()
        self._free_s = 0.0  # when the next message can leave
        self._leaving: set[int] = set()  # moves
        self._sources: dict[int, Wire | None] = {}  # of moves that come here
        self.num_sent_bytes = 0

    @property
    def has_news(self) -> bool:
        return bool(self._news)

    def received(self) -> list[News]:
        news, self._news = list(self._news), deque()
        return news

    def check_endpoint(self, to: str) -> None:
        pass

    def copy_out(self, move: int, to: str, first: int, blocks: Ids) -> None:
        self._leaving.add(move)
        self._send(to, Blocks(move, first, len(blocks)), len(blocks))

    def hand_over(self, to: str, last: Last, blocks: Ids) -> None:
        self._leaving.add(last.move)
        self._send(to, last, len(blocks))

    def num_acknowledged(self, move: int) -> int:
        return 0

    def copy_s(self, num_blocks: int) -> float:
        return num_blocks * self._machine.block_bytes / self._machine.bytes_per_s

    def expect(self, move: int) -> None:
        self._sources[move] = None

    def write(self, move: int, blocks: Ids, payload: Payload, is_last: bool = False) -> None:
        self._tell(Written(move))
        source = self._sources[move]
        assert source is not None
        source.written(move)

    def written(self, move: int) -> None:
        """The destination has all blocks of a round."""
        if move in self._leaving:
            self._tell(Copied(move))

    def write_now(self, blocks: Ids, payload: Payload) -> None:
        pass

    def refuse(self, move: int, why: str) -> None:
        source = self._sources[move]
        assert source is not None
        source._tell(Nak(move, why))

    def forget(self, move: int) -> bool:
        self._leaving.discard(move)
        self._sources.pop(move, None)
        return True

    def forget_all(self) -> None:
        self._leaving.clear()
        self._sources.clear()

    def _send(self, to: str, message: Blocks | Last, num_blocks: int) -> None:
        self.num_sent_bytes += round(num_blocks * self._machine.block_bytes)
        self._free_s = max(self._free_s, self._agenda.now_s) + self.copy_s(num_blocks)
        self._agenda.at(self._free_s, lambda: self._arrives(to, message))

    def _arrives(self, to: str, message: Blocks | Last) -> None:
        if message.move not in self._leaving:
            return
        if isinstance(message, Last):
            self._tell(HandedOver(message.move))
        self._others[to]._came(self, message)

    def _came(self, source: Wire, message: Blocks | Last) -> None:
        if message.move in self._sources:
            self._sources[message.move] = source
            self._tell(Came(message, NO_PAYLOAD))

    def _tell(self, news: News) -> None:
        self._news.append(news)
        self.told()


class _Lengths:
    """An engine that makes as many tokens as each answer has, all with the same id."""

    def __init__(self, scheduler: SlotScheduler, answers: Counts) -> None:
        self._scheduler = scheduler
        self._answers = answers
        self._left = np.zeros(scheduler.limits.num_slots, np.int64)

    def launch(self, plan: StepPlan) -> None:
        for operation in plan.operations:
            if isinstance(operation, Admit):
                number = self._scheduler.slots.request_ids[operation.slot]
                self._left[operation.slot] = self._answers[number] - operation.num_output_tokens

    def collect(self, plan: StepPlan) -> StepOutput:
        slots = plan.slots[plan.samples]
        self._left[slots] -= 1
        finishes = np.where(self._left[slots] == 0, Finish.STOP, Finish.RUNNING).astype(np.uint8)
        return StepOutput(plan.number, np.ones(len(slots), np.int32), finishes)


class Host:
    """An instance. Calls `say` with its messages to the scheduler model."""

    def __init__(
        self, number: int, agenda: Agenda, machine: Machine, answers: Counts, wires: dict[str, Wire]
    ) -> None:
        self.number = number
        self.say: Callable[[int, Sequence[FromInstance]], None] = lambda number, messages: None
        self.scheduler = machine.scheduler(agenda.clock)
        self.num_tokens = 0
        self.row_s = 0.0  # seconds × requests that ran
        self._agenda = agenda
        self._engine = _Lengths(self.scheduler, answers)
        self._wire = wires[self.endpoint] = Wire(agenda, machine, wires)
        self._wire.told = lambda: agenda.at(agenda.now_s, self.turn)
        self._moves = Moves(self.scheduler, self._wire, max_rounds=3, clock=agenda.clock)
        self._plan: StepPlan | None = None  # that runs
        self._last_submit = 0
        self._beaten_s = 0.0
        self._looks_again = False

    @property
    def endpoint(self) -> str:
        return f"blocks-{self.number}"

    @property
    def hello(self) -> Hello:
        return Hello(self.scheduler.limits, "", self.endpoint, "simulated")

    def take(self, messages: Sequence[ToInstance]) -> None:
        """Takes messages at once, also while a step runs."""
        for message in messages:
            self._take(message)

    def turn(self) -> None:
        """One turn of the loop: begins a step if none runs."""
        if self._moves.is_active:
            self._say(self._moves.step())
        if self._plan is None:
            self._begin_step()
        self._beat_if_due()

    def _take(self, message: ToInstance) -> None:
        if isinstance(message, Submit):
            self._last_submit = message.number
            self.scheduler.submit(message.request, message.delivered, message.request_epoch, message.age_s)
        elif isinstance(message, Predicted):
            self.scheduler.predict(message.request_id, message.prediction)
        elif isinstance(message, Cancel):
            self.scheduler.cancel(message.request_id, message.request_epoch)
        elif isinstance(message, Reserve | MoveOut | AbortMove | Resume):
            self._say(self._moves.take(message))

    def _begin_step(self) -> None:
        plan = self.scheduler.plan() or self.scheduler.plan()  # the first may only evict
        self._say(self.scheduler.take_started())
        if plan is None:
            self._look_again_if_needed()
            return
        self._engine.launch(plan)
        self._plan = plan
        seconds = self.scheduler.outlook.step_time.expected_s(plan)
        self.row_s += seconds * self.scheduler.num_running
        self._agenda.at(self._agenda.now_s + seconds, self._end_step)

    def _end_step(self) -> None:
        plan, self._plan = self._plan, None
        assert plan is not None
        tokens = self.scheduler.apply(plan, self._engine.collect(plan))
        self.num_tokens += len(tokens.tokens)
        self._say([tokens])
        self.turn()

    def _look_again_if_needed(self) -> None:
        if not self.scheduler.is_idle and not self._looks_again:
            self._looks_again = True
            self._agenda.at(self._agenda.now_s + RETRY_S, self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self.turn()

    def _beat_if_due(self) -> None:
        if self.scheduler.is_idle or self._agenda.now_s - self._beaten_s >= HEARTBEAT_S:
            self._beaten_s = self._agenda.now_s
            self._say([self.scheduler.load().changed(last_submit=self._last_submit)])

    def _say(self, messages: Sequence[FromInstance]) -> None:
        if messages:
            self.say(self.number, messages)
