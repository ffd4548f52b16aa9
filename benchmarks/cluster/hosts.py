"""One simulated instance of `cluster`: the real slot scheduler and moves, with a simulated engine (a
length for each answer and a model of step time) and a simulated wire (a number of bytes a second).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from benchmarks.cluster.requests import MAX_MODEL_TOKENS, Counts
from benchmarks.common.given_lengths import GivenLengths
from benchmarks.policies import setting_of
from python_backends.instance.heartbeat import HEARTBEAT_S
from python_backends.moving.copier import Copier
from python_backends.moving.copies import Came, Copied, News, Written
from python_backends.moving.moves import Moves
from python_backends.moving.wire import Payload
from python_backends.nouns.messages import Cancel, FromInstance, Hello, Predicted, Submit, ToInstance
from python_backends.nouns.moves import AbortMove, Blocks, Last, MoveOut, Nak, Refusal, Reserve, Resume
from python_backends.nouns.request import Ids, ModelLimits
from python_backends.nouns.step import StepPlan
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.state.sequence import Sequence as Waiting
from python_backends.settings import SchedulingSettings

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

    @property
    def scheduling(self) -> SchedulingSettings:
        return SchedulingSettings("fcfs" if self.admission == AS_NEEDED else setting_of(self.admission))

    def scheduler(self, clock: Callable[[], float]) -> SlotScheduler:
        """Returns a slot scheduler that knows the times of its steps."""
        reserve = _tokens_so_far if self.admission == AS_NEEDED else None
        scheduler = SlotScheduler(self.limits, self.token_budget, self.scheduling, reserve, clock)
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


class SimulatedCopier(Copier):
    """Sends blocks from one instance to the others, one message after the other. Copies no bytes, and has no
    thread.
    """

    def __init__(self, agenda: Agenda, machine: Machine, others: dict[str, SimulatedCopier]) -> None:
        self.told: Callable[[], None] = lambda: None  # called when a message has arrived
        self._agenda = agenda
        self._machine = machine
        self._others = others  # by endpoint
        self._news: deque[News] = deque()
        self._free_s = 0.0  # when the next message can leave
        self._leaving: set[int] = set()  # moves
        self._sources: dict[int, SimulatedCopier | None] = {}  # of moves that come here
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
        self._post(to, Blocks(move, first, len(blocks)), len(blocks))

    def hand_over(self, to: str, last: Last, blocks: Ids) -> None:
        self._leaving.add(last.move)
        self._post(to, last, len(blocks))

    def heard_s(self, move: int) -> float:
        return self._agenda.now_s

    def copy_s(self, num_blocks: int) -> float:
        return num_blocks * self._machine.block_bytes / self._machine.bytes_per_s

    def expect(self, move: int) -> None:
        self._sources[move] = None

    def write(self, came: Came, blocks: Ids) -> None:
        self._note(Written(came.message))
        source = self._sources[came.message.move]
        assert source is not None
        source.written(came.message.move)

    def written(self, move: int) -> None:
        """The destination has all blocks of a round."""
        if move in self._leaving:
            self._note(Copied(move))

    def write_now(self, blocks: Ids, payload: Payload) -> None:
        pass

    def refuse(self, move: int, why: Refusal) -> None:
        source = self._sources[move]
        assert source is not None
        source._note(Nak(move, why))

    def forget(self, move: int) -> None:
        self._leaving.discard(move)
        self._sources.pop(move, None)

    def forget_all(self) -> None:
        self._leaving.clear()
        self._sources.clear()

    def _post(self, to: str, message: Blocks | Last, num_blocks: int) -> None:
        self.num_sent_bytes += round(num_blocks * self._machine.block_bytes)
        self._free_s = max(self._free_s, self._agenda.now_s) + self.copy_s(num_blocks)
        self._agenda.at(self._free_s, lambda: self._arrives(to, message))

    def _arrives(self, to: str, message: Blocks | Last) -> None:
        if message.move in self._leaving:
            self._others[to]._came(self, message)

    def _came(self, source: SimulatedCopier, message: Blocks | Last) -> None:
        if message.move in self._sources:
            self._sources[message.move] = source
            self._note(Came(message, b"", NO_PAYLOAD))

    def _note(self, news: News) -> None:
        self._news.append(news)
        self.told()


class Host:
    """An instance. Calls `say` with its messages to the scheduler model."""

    def __init__(
        self,
        number: int,
        agenda: Agenda,
        machine: Machine,
        answers: Counts,
        copiers: dict[str, SimulatedCopier],
    ) -> None:
        self.number = number
        self.say: Callable[[int, Sequence[FromInstance]], None] = lambda number, messages: None
        self.scheduler = machine.scheduler(agenda.clock)
        self.num_tokens = 0
        self.row_s = 0.0  # seconds × requests that ran
        self._agenda = agenda
        self._engine = GivenLengths(self.scheduler, answers)
        self._copier = copiers[self.endpoint] = SimulatedCopier(agenda, machine, copiers)
        self._copier.told = lambda: agenda.at(agenda.now_s, self.turn)
        self._moves = Moves(self.scheduler, self._copier, clock=agenda.clock)
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
            self._say(self._moves.handle(message))

    def _begin_step(self) -> None:
        plan = self.scheduler.plan() or self.scheduler.plan()  # the first may only evict
        self._say([*self.scheduler.take_evicted(), *self.scheduler.take_started()])
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
