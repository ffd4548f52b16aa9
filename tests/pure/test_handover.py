"""A request that moves between two slot schedulers over toy engines: whatever happens meanwhile, its tokens
are those of an undisturbed run, and every count adds up.

The toy engine's tokens are computed from the content of its KV blocks, so a block that was not copied, was
copied too early or was given to another request changes the answer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from python_backends.engine.protocol import ExportsBlocks
from python_backends.engine.toy.engine import ToyEngine
from python_backends.nouns.request import Finish, Ids, Request
from python_backends.nouns.step import Admit, StepPlan, Tokens
from python_backends.scheduling.handover import RefusedMove
from python_backends.scheduling.scheduler import SlotScheduler
from python_backends.settings import EngineSettings, ModelSettings, SchedulingSettings, Settings, ToySettings
from tests.pure.test_scheduler_states import NEVER_EVICT, RULES, Device, asks, make_request
from tests.support.examples import examples
from tests.support.scheduling import VOCAB, answer, request, write_vocabulary
from tests.support.toy_answers import toy_answer

BLOCKS, SIZE = 26, 4
MOST_TOKENS = 100
NO_TOKENS = np.zeros(0, np.int32)


@pytest.fixture(scope="module", autouse=True)
def model(tmp_path_factory: pytest.TempPathFactory) -> None:
    Host.model = write_vocabulary(tmp_path_factory.mktemp("toy"))


class Host:
    """An instance: slot scheduler and toy engine, turned by hand. Tokens go to `streams`, by request and
    life.
    """

    model: Path

    def __init__(
        self, streams: Streams, rules: str = "fcfs", depth: int = 1, slots: int = 3, **toy: Any
    ) -> None:
        engine = EngineSettings(kind="toy", slots=slots, kv_blocks=BLOCKS, block_tokens=SIZE)
        model = ModelSettings(str(Host.model), max_model_tokens=MOST_TOKENS + 1)
        self.engine = ToyEngine(Settings(model=model, engine=engine, toy=ToySettings(**toy)))
        policy, reserve = RULES[rules]
        self.now_s = 0.0
        self.scheduler = SlotScheduler(
            self.engine.limits, 16, SchedulingSettings(policy), reserve, clock=lambda: self.now_s
        )
        self.handover = self.scheduler.handover
        self.device = Device()
        self.depth = depth
        self.launched: deque[StepPlan] = deque()
        self.streams = streams

    def turn(self) -> bool:
        self.now_s += 1.0
        plan = self.scheduler.plan()
        if plan is not None:
            self.device.take(plan)
            self.engine.launch(plan)
            self.launched.append(plan)
        reads = bool(self.launched) and (plan is None or len(self.launched) >= self.depth)
        if reads:
            self.streams.take(self.scheduler.apply(self.launched.popleft(), self.engine.collect()))
        self.scheduler.check_integrity()
        return plan is not None or reads

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()


@dataclass
class Answer:
    request: Request
    epoch: int = 0
    tokens: list[int] = field(default_factory=list)
    finish: Finish = Finish.RUNNING

    @cached_property
    def whole(self) -> list[int]:
        """Of a run with nothing else in it."""
        return toy_answer(self.request.prompt, self.request.sampling, VOCAB)

    @property
    def is_open(self) -> bool:
        return self.finish == Finish.RUNNING

    @property
    def delivered(self) -> Ids:
        return np.array(self.tokens, np.int32)


class Streams:
    """What the scheduler model knows: each answer, and which life of it counts."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}

    def submit(self, host: Host, ask: Request) -> Answer:
        known = self.answers.setdefault(ask.request_id, Answer(ask))
        host.scheduler.submit(ask, known.delivered, known.epoch)
        return known

    def take(self, tokens: Tokens) -> None:
        rows = zip(
            tokens.request_ids,
            tokens.request_epochs,
            tokens.indices,
            tokens.tokens,
            tokens.finishes,
            strict=True,
        )
        for number, epoch, index, token, finish in rows:
            known = self.answers[int(number)]
            if known.is_open and known.epoch == epoch:
                assert index == len(known.tokens), "tokens come in order, none twice"
                known.tokens.append(int(token))
                known.finish = Finish(int(finish))


@dataclass
class Move:
    """One move, step by step, as the two instances make it. `read` are the source's blocks that a copy has
    not given back.
    """

    number: int
    answer: Answer
    source: Host
    destination: Host
    next_block: int = 0
    has_started: bool = False
    read: list[Ids] = field(default_factory=list)

    @property
    def request_id(self) -> int:
        return self.answer.request.request_id

    def reserve(self, **options: Any) -> None:
        known = self.answer
        self.next_block = self.destination.handover.reserve(
            self.number, known.request, known.delivered, known.epoch + 1, **options
        )

    def copy(self, last: int) -> None:
        """The blocks from the next one on to `last` travel."""
        first, self.next_block = self.next_block, max(self.next_block, last)
        if last <= first:
            return
        blocks = self.source.handover.take(self.request_id, first, last)
        self.read.append(blocks)
        data = self.source.engine.export_blocks(blocks)
        into = self.destination.handover.blocks_of(self.number, first, last)
        self.destination.engine.import_blocks(into, memoryview(data.tobytes()))

    def round(self) -> None:
        """All full blocks travel that have not."""
        self.copy(self.source.handover.num_full_blocks(self.request_id))
        num_known = self.next_block * SIZE
        tokens = self.source.handover.tokens(self.request_id)[:num_known]
        self.destination.handover.publish(self.number, tokens)

    def hold(self) -> None:
        self.source.handover.hold(self.request_id)

    @property
    def is_held(self) -> bool:
        scheduler = self.source.scheduler
        sequence = scheduler.find(self.request_id)
        return sequence in scheduler.slots.running() and bool(scheduler.slots.held[sequence.slot])

    @property
    def is_settled(self) -> bool:
        return self.source.handover.is_settled(self.request_id)

    def last(self) -> int:
        """The last block and the tokens travel; the destination adopts. The index of its first token."""
        tokens = self.source.handover.tokens(self.request_id)
        self.copy(-(-(len(tokens) - 1) // SIZE))
        self.answer.epoch += 1
        index = self.destination.handover.adopt(self.number, tokens)
        assert index == len(self.answer.tokens)
        return index

    def let_go(self) -> None:
        """The copies have read what they were lent."""
        while self.read:
            self.source.handover.give_back(self.read.pop())

    def leave(self) -> None:
        """The source hears that the request is elsewhere."""
        self.source.scheduler.cancel(self.request_id, self.answer.epoch - 1)


def run(*hosts: Host) -> None:
    turns = 0
    while sum(host.turn() for host in hosts):
        turns += 1
        assert turns < 20_000
    for host in hosts:
        assert host.scheduler.is_idle
        assert host.scheduler.blocks.num_used == 0


def pair(rules: str = "fcfs", depth: int = 1, **options: Any) -> tuple[Streams, Host, Host]:
    streams = Streams()
    return streams, Host(streams, rules, depth, **options), Host(streams, rules, depth, **options)


def whole_move(move: Move, rounds: int = 2, steps: int = 3) -> None:
    move.reserve()
    for _ in range(rounds):
        move.round()
        move.source.turns(steps)
    move.hold()
    while not move.is_settled:
        move.source.turn()
    move.last()
    move.let_go()
    move.leave()


# --- one move


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("rules", sorted(RULES))
@pytest.mark.parametrize("length", [1, 3, 4, 5, 11])
def test_a_moved_request_gets_the_tokens_of_an_undisturbed_run(rules: str, depth: int, length: int) -> None:
    streams, source, destination = pair(rules, depth)
    ask = request(1, [5, 8, 9] * length, max_tokens=40, temperature=1.0, seed=3)
    known = streams.submit(source, ask)
    streams.submit(source, request(2, [6] * 7, max_tokens=30))
    streams.submit(destination, request(3, [7] * 6, max_tokens=14))
    destination.turns(4)
    while len(known.tokens) < 5:
        source.turn()
    whole_move(Move(7, known, source, destination))
    run(source, destination)
    assert known.tokens == answer(ask)
    assert streams.answers[2].tokens == answer(streams.answers[2].request)
    assert streams.answers[3].tokens == answer(streams.answers[3].request)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_destination_decodes_at_once_and_prefills_nothing(depth: int) -> None:
    streams, source, destination = pair(depth=depth)
    known = streams.submit(source, request(1, [3] * 9, max_tokens=30))
    source.turns(8)
    whole_move(Move(1, known, source, destination))
    destination.scheduler.take_started()
    index = len(known.tokens)
    plan = destination.scheduler.plan()
    assert plan is not None
    assert plan.num_decodes == len(plan.slots) == 1
    assert plan.first_starts.tolist() == [9 + index - 1]
    assert isinstance(plan.operations[0], Admit)
    assert not destination.scheduler.take_started(), "nothing was found of its prompt, and it did not wait"


def test_a_request_can_move_on_and_back_again() -> None:
    streams, first, second = pair()
    ask = request(1, [3, 1, 4] * 3, max_tokens=60)
    known = streams.submit(first, ask)
    first.turns(5)
    for number in range(12):
        source, destination = (first, second) if number % 2 == 0 else (second, first)
        source.turns(2)
        whole_move(Move(number, known, source, destination), rounds=1, steps=1)
    run(first, second)
    assert known.tokens == answer(ask)
    assert known.epoch == 12


def test_a_common_beginning_is_found_at_the_destination_and_not_copied() -> None:
    streams, source, destination = pair()
    streams.submit(destination, request(9, [5] * 14, max_tokens=1))
    run(destination)
    known = streams.submit(source, request(1, [5] * 13, max_tokens=20))
    source.turns(4)
    move = Move(1, known, source, destination)
    move.reserve()
    assert move.next_block == 3
    assert destination.scheduler.blocks.num_retained == 0
    with pytest.raises(ValueError, match="between 3 and"):
        destination.handover.blocks_of(1, 2, 4)
    move.hold()
    move.last()
    move.let_go()
    move.leave()
    run(source, destination)
    assert known.tokens == answer(known.request)


def test_blocks_that_have_been_copied_are_found_by_others_even_if_the_move_is_dropped() -> None:
    streams, source, destination = pair()
    known = streams.submit(source, request(1, [5] * 13, max_tokens=30))
    source.turns(8)
    move = Move(1, known, source, destination)
    move.reserve()
    move.round()
    destination.handover.drop(1)
    move.let_go()
    other = streams.submit(destination, request(2, [5] * 13, max_tokens=30))
    destination.turn()
    assert destination.scheduler.take_started()[0].num_prefix_hit_tokens == 12
    run(source, destination)
    assert known.tokens == other.tokens == answer(known.request)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_held_request_gets_the_tokens_of_launched_steps_and_no_others(depth: int) -> None:
    streams, source, _ = pair(depth=depth)
    known = streams.submit(source, request(1, [3] * 6, max_tokens=50))
    other = streams.submit(source, request(2, [4] * 6, max_tokens=50))
    source.turns(10)
    source.handover.hold(1)
    in_flight, count = len(source.launched), len(known.tokens)
    assert source.handover.is_settled(1) == (depth == 1)
    source.turns(9)
    assert source.handover.is_settled(1)
    assert len(known.tokens) == count + in_flight
    assert not source.handover.can_leave(1, 0)
    assert source.handover.resume(1, 4)
    known.epoch = 4
    run(source)
    assert known.tokens == answer(known.request)
    assert other.tokens == answer(other.request)
    assert not source.handover.resume(1, 5), "it has ended"


def test_a_request_can_leave_once_it_has_got_a_token_here() -> None:
    streams, source, _ = pair(slots=1)
    known = streams.submit(source, request(1, [3] * 30, max_tokens=5))
    streams.submit(source, request(2, [3] * 3, max_tokens=5))
    while not known.tokens:
        assert not source.handover.can_leave(1, 0)
        source.turn()
    assert source.handover.num_full_blocks(1) == 7
    assert source.handover.can_leave(1, 0)
    assert not source.handover.can_leave(1, 1), "this is another life of it"
    assert not source.handover.can_leave(2, 0), "it waits"
    run(source)
    assert not source.handover.can_leave(1, 0)


def test_blocks_of_launched_steps_are_not_read_before_these_are_booked() -> None:
    streams, source, _ = pair(depth=3)
    known = streams.submit(source, request(1, [3] * 15, max_tokens=30))
    while known.is_open:
        source.turn()
        if source.handover.can_leave(1, 0):
            assert source.handover.num_full_blocks(1) == (15 + len(known.tokens) - 1) // SIZE
            assert len(source.launched) == 2 or not known.is_open or len(known.tokens) > 25


def test_a_request_that_ends_while_it_is_held_has_ended() -> None:
    streams, source, _ = pair(depth=2)
    known = streams.submit(source, request(1, [3] * 5, max_tokens=4))
    while len(known.tokens) < 3:
        source.turn()
    source.handover.hold(1)
    source.turns(3)
    assert known.finish is Finish.LENGTH
    assert not source.handover.is_settled(1)
    run(source)


def test_a_late_cancel_of_an_earlier_life_changes_nothing() -> None:
    streams, first, second = pair()
    known = streams.submit(first, request(1, [3] * 5, max_tokens=30))
    first.turns(4)
    whole_move(Move(1, known, first, second))
    assert not second.scheduler.cancel(1, known.epoch - 1)
    run(first, second)
    assert known.tokens == answer(known.request)


# --- what a reservation takes and gives back


def test_a_reservation_is_counted_and_nothing_else_gets_its_slot_or_blocks() -> None:
    streams, _, host = pair(slots=2)
    ask = request(1, [3] * 10, max_tokens=40)
    assert host.handover.reserve(1, ask, NO_TOKENS, 1) == 0
    load = host.scheduler.load()
    assert (load.num_reserved_slots, load.num_running, load.num_slots) == (1, 0, 2)
    assert load.num_used_blocks == 13, "all of its limit: 50 tokens"
    assert not host.scheduler.is_idle
    for number in range(2, 6):
        streams.submit(host, request(number, [number] * 5, max_tokens=6))
    while host.turn():
        assert host.scheduler.num_running <= 1
    host.handover.drop(1)
    run(host)
    assert host.scheduler.load().num_reserved_slots == 0


def test_a_move_is_refused_where_slots_or_blocks_are_lacking_or_the_model_is_another() -> None:
    streams, _, host = pair(slots=2)
    with pytest.raises(RefusedMove) as refused:
        host.handover.reserve(1, request(1, [VOCAB] * 10), NO_TOKENS, 1)
    assert refused.value.why == "model"
    streams.submit(host, request(2, [2] * 60, max_tokens=8))
    host.turn()
    with pytest.raises(RefusedMove) as refused:
        host.handover.reserve(1, request(1, [3] * 20, max_tokens=40), NO_TOKENS, 1)
    assert refused.value.why == "memory"
    host.handover.reserve(1, request(1, [3] * 5, max_tokens=4), NO_TOKENS, 1)
    with pytest.raises(RefusedMove) as refused:
        host.handover.reserve(2, request(3, [3] * 5, max_tokens=4), NO_TOKENS, 1)
    assert refused.value.why == "slots"
    host.handover.drop(1)
    run(host)


def test_a_reservation_without_blocks_for_a_later_round_is_refused_and_stays() -> None:
    """While blocks are scarce it gets those of its next token, as a sequence that runs does."""
    streams, _, host = pair("ours")
    for number in (2, 3):
        streams.submit(host, request(number, [number] * 25, max_tokens=10))
    host.turn()
    before = host.scheduler.load().num_used_blocks
    host.handover.reserve(1, request(1, [3] * 4, max_tokens=96), NO_TOKENS, 1)
    assert host.scheduler.load().num_used_blocks == before + 2
    assert len(host.handover.blocks_of(1, 0, 5)) == 5
    with pytest.raises(RefusedMove):
        host.handover.blocks_of(1, 0, 25)
    host.scheduler.check_integrity()
    assert host.scheduler.load().num_used_blocks == before + 5
    host.handover.drop(1)
    run(host)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([3] * 5, "must be more than 5"),
        ([3] * 4 + [4, 4], "another request"),
        ([3] * 5 + [VOCAB], f"token id {VOCAB} in the answer so far"),
        ([3] * 5 + [1] * 60, "fewer than 26"),
    ],
)
def test_tokens_of_another_request_are_not_adopted(tokens: list[int], message: str) -> None:
    _, _, host = pair()
    host.handover.reserve(1, request(1, [3] * 5, max_tokens=21), NO_TOKENS, 1)
    with pytest.raises(ValueError, match=message):
        host.handover.adopt(1, np.array(tokens, np.int32))
    host.handover.drop(1)
    run(host)


def test_what_a_copy_reads_is_not_used_again_before_it_is_given_back() -> None:
    streams, source, _ = pair(slots=2)
    streams.submit(source, request(1, [3] * 20, max_tokens=40))
    source.turns(10)
    read = source.handover.take(1, 0, 6)
    before = source.engine.export_blocks(read).tobytes()
    source.scheduler.cancel(1)
    for number in range(4, 10):
        streams.submit(source, request(number, [number] * 30, max_tokens=40))
    while source.turn():
        assert not set(read.tolist()) & {
            block for sequence in source.scheduler.slots.running() for block in sequence.blocks.tolist()
        }
    assert not source.scheduler.is_idle
    assert source.engine.export_blocks(read).tobytes() == before
    source.handover.give_back(read)
    run(source)


def test_orca_does_not_admit_into_blocks_that_a_copy_still_reads() -> None:
    streams, source, _ = pair("orca", slots=4)
    streams.submit(source, request(1, [3] * 40, max_tokens=20))
    source.turns(5)
    read = source.handover.take(1, 0, 10)
    source.scheduler.cancel(1)
    known = streams.submit(source, request(2, [4] * 60, max_tokens=30))
    source.turns(5)
    assert source.scheduler.num_waiting == 1
    source.handover.give_back(read)
    run(source)
    assert known.tokens == answer(known.request)
    assert source.scheduler.num_evictions == 0


def test_a_held_request_is_not_evicted() -> None:
    streams, source, _ = pair("fcfs that reserves nothing")
    asks = [request(number, [number] * 12, max_tokens=60) for number in (1, 2, 3)]
    known = [streams.submit(source, ask) for ask in asks]
    source.turns(6)
    source.handover.hold(3)
    blocks = source.handover.take(3, 0, 3)
    source.turns(40)
    assert source.scheduler.num_evictions > 0
    assert source.handover.is_settled(3)
    assert source.handover.take(3, 0, 3).tolist() == blocks.tolist()
    for _ in range(2):
        source.handover.give_back(blocks)
    assert source.handover.resume(3, 0)
    run(source)
    assert [each.tokens for each in known] == [answer(ask) for ask in asks]


def test_a_new_session_leaves_no_reservation_and_no_hold() -> None:
    streams, source, host = pair()
    known = streams.submit(host, request(1, [3] * 9, max_tokens=40))
    host.turns(8)
    read = host.handover.take(1, 0, 2)
    host.handover.hold(1)
    host.handover.reserve(5, request(2, [4] * 9), NO_TOKENS, 1)
    host.handover.abandon_all()
    host.scheduler.check_integrity()
    assert host.scheduler.load().num_reserved_slots == 0
    host.turn()
    host.handover.give_back(read)
    run(source, host)
    assert known.tokens == answer(known.request)


# --- order


def test_a_moved_request_keeps_its_age_among_those_that_run_there() -> None:
    """The older ones keep their blocks when these run out."""
    streams, source, destination = pair("fcfs that reserves nothing")
    oldest = streams.submit(source, request(1, [3] * 9, max_tokens=40))
    source.turns(8)
    destination.turns(5)
    streams.submit(destination, request(2, [4] * 9, max_tokens=50))
    destination.turns(2)
    streams.submit(destination, request(3, [5] * 9, max_tokens=50))
    destination.turns(2)
    move = Move(1, oldest, source, destination)
    move.reserve(age_s=8.0)
    move.hold()
    move.last()
    move.let_go()
    move.leave()
    assert [each.request_id for each in destination.scheduler.slots.running()] == [1, 2, 3]
    between = streams.submit(source, request(4, [3] * 9, max_tokens=40))
    source.turns(8)
    destination.scheduler.cancel(1)
    move = Move(2, between, source, destination)
    move.reserve(age_s=3.0)
    move.hold()
    move.last()
    move.let_go()
    move.leave()
    assert [each.request_id for each in destination.scheduler.slots.running()] == [2, 4, 3]
    streams.answers[1].finish = Finish.CANCELLED
    run(source, destination)
    for number in (2, 3, 4):
        assert streams.answers[number].tokens == answer(streams.answers[number].request)


def test_what_waits_is_in_the_load() -> None:
    streams, _, host = pair(slots=1)
    for number, length in ((1, 5), (2, 9), (3, 16)):
        streams.submit(host, request(number, [number] * length, priority=number - 2))
    host.turn()
    load = host.scheduler.load()
    assert (load.num_waiting, load.num_high_priority, load.waiting_blocks, load.head_blocks) == (2, 1, 5, 3)
    run(host)
    load = host.scheduler.load()
    assert (load.num_high_priority, load.waiting_blocks, load.head_blocks) == (0, 0, 0)


# --- the toy engine's blocks


def test_a_toy_block_weighs_what_the_settings_say() -> None:
    light, heavy = (Host(Streams(), block_bytes=weight).engine for weight in (0, 1000))
    assert isinstance(light, ExportsBlocks)
    assert (light.block_bytes, heavy.block_bytes) == (4 * SIZE, 1000)
    assert light.kv_format != heavy.kv_format
    blocks = np.array([3, 1], np.int32)
    data = heavy.export_blocks(blocks)
    assert data.shape == (2000,)
    heavy.import_blocks(blocks, memoryview(data.tobytes()))
    with pytest.raises(ValueError, match="1999 bytes for 2 blocks of 1000 bytes"):
        heavy.import_blocks(blocks, memoryview(data.tobytes()[1:]))


# --- anything, in any order


class Cluster:
    """Two instances with at most one move of each request, which may be aborted at each of its points. Plays
    the scheduler model and both instances' ends of the moves. `pick` chooses among those that an action can
    be done with.
    """

    def __init__(self, rules: str, slots: int, depth: int) -> None:
        self.rules = rules
        self.streams, *self.hosts = pair(rules, depth, slots=slots)
        self.at: dict[int, Host] = {}  # where each request is
        self.moves: dict[int, Move] = {}  # by request
        self.num_moves = self.num_adopted = 0
        self.refusals: set[tuple[str, bool]] = set()  # why, and whether a slot was free

    # --- requests

    def arrive(self, ask: dict[str, Any], pick: int) -> None:
        number = len(self.streams.answers)
        self.at[number] = self.hosts[pick % 2]
        self.streams.submit(self.hosts[pick % 2], make_request(number, **ask))

    def compute(self, pick: int, steps: int) -> None:
        self.hosts[pick % 2].turns(steps)
        self.end_moves()

    def cancel(self, pick: int) -> None:
        known = chosen(self.open_answers(), pick)
        known.finish = Finish.CANCELLED
        self.at[known.request.request_id].scheduler.cancel(known.request.request_id)
        self.end_moves()

    # --- moves

    def reserve(self, pick: int, age_s: float) -> None:
        known = chosen(self.movable(), pick)
        source = self.at[known.request.request_id]
        destination = self.hosts[1 - self.hosts.index(source)]
        is_free = destination.scheduler.slots.num_free > 0
        self.num_moves += 1
        move = Move(self.num_moves, known, source, destination)
        try:
            move.reserve(age_s=age_s)
            self.moves[move.request_id] = move
        except RefusedMove as refused:
            self.refusals.add((refused.why, is_free))

    def copy(self, pick: int) -> None:
        """One round, before the request is held or after it."""
        move = chosen(list(self.moves.values()), pick)
        try:
            move.round()
        except RefusedMove:
            self.abort(move)

    def read(self, pick: int) -> None:
        chosen(list(self.moves.values()), pick).let_go()

    def hold(self, pick: int, steps: int) -> None:
        move = chosen(list(self.moves.values()), pick)
        move.hold()
        self.compute(self.hosts.index(move.source), steps)

    def hand_over(self, pick: int, is_lost: bool, steps: int) -> None:
        """The destination goes on. Where its answer is lost, the source does so as another life, and what the
        destination computes meanwhile counts for nothing.
        """
        move = chosen(self.settled(), pick)
        known, number = move.answer, move.request_id
        try:
            move.last()
        except RefusedMove:
            self.abort(move)
            return
        del self.moves[number]
        self.num_adopted += 1
        if is_lost:
            known.epoch += 1
            assert move.source.handover.resume(number, known.epoch)
            move.destination.turns(steps)
            move.destination.scheduler.cancel(number, known.epoch - 1)
        else:
            self.at[number] = move.destination
            move.destination.turns(steps)
            assert move.source.scheduler.cancel(number, known.epoch - 1)
        move.let_go()
        self.end_moves()

    def abort_one(self, pick: int) -> None:
        self.abort(chosen(list(self.moves.values()), pick))

    def new_session(self, pick: int) -> None:
        """The scheduler model gave an instance up: what it had comes again."""
        host = self.hosts[pick % 2]
        for move in list(self.moves.values()):
            self.abort(move)
        host.handover.abandon_all()
        host.scheduler.cancel_all()
        for known in self.open_answers():
            if self.at[known.request.request_id] is host:
                known.epoch += 1
                self.streams.submit(host, known.request)

    # --- what always holds

    def check(self) -> None:
        assert self.refusals <= {("slots", False), ("memory", True)}
        for host in self.hosts:
            host.scheduler.check_integrity()
            reserved = [move for move in self.moves.values() if move.destination is host]
            assert host.scheduler.load().num_reserved_slots == len(reserved)
        for known in self.streams.answers.values():
            assert known.tokens == known.whole[: len(known.tokens)]
            if known.finish in (Finish.LENGTH, Finish.STOP):
                assert known.tokens == known.whole

    def finish(self) -> None:
        """Everything ends by itself, and nothing is left."""
        for move in list(self.moves.values()):
            self.abort(move)
        run(*self.hosts)
        assert not self.open_answers()
        self.check()
        for host in self.hosts:
            assert host.scheduler.num_evictions == 0 or self.rules not in NEVER_EVICT

    def abort(self, move: Move) -> None:
        move.destination.handover.drop(move.number)
        move.let_go()
        move.source.handover.resume(move.request_id, move.answer.epoch)
        del self.moves[move.request_id]

    def end_moves(self) -> None:
        """Moves end whose request does not run at their source any more, or prefills again there: it has
        ended, was cancelled or evicted.
        """
        for number, move in list(self.moves.items()):
            if not move.source.handover.can_leave(number, move.answer.epoch) and not move.is_held:
                move.destination.handover.drop(move.number)
                move.let_go()
                del self.moves[number]

    def open_answers(self) -> list[Answer]:
        return [known for known in self.streams.answers.values() if known.is_open]

    def movable(self) -> list[Answer]:
        return [
            known
            for known in self.open_answers()
            if (number := known.request.request_id) not in self.moves
            and self.at[number].handover.can_leave(number, known.epoch)
        ]

    def settled(self) -> list[Move]:
        return [move for move in self.moves.values() if move.is_settled]


def chosen(among: list[Any], pick: int) -> Any:
    return among[pick % len(among)]


picks = st.integers(0, 11)


class MovesStates(RuleBasedStateMachine):
    @initialize(
        rules=st.sampled_from(sorted(RULES)), slots=st.sampled_from([1, 2, 4]), depth=st.integers(1, 3)
    )
    def begin(self, rules: str, slots: int, depth: int) -> None:
        self.cluster = Cluster(rules, slots, depth)

    @rule(asked=st.lists(asks, min_size=1, max_size=3), pick=picks, steps=st.integers(0, 8))
    def arrive(self, asked: list[dict[str, Any]], pick: int, steps: int) -> None:
        for ask in asked:
            self.cluster.arrive(ask, pick)
        self.cluster.compute(pick, steps)

    @rule(pick=picks, steps=st.integers(1, 12))
    def compute(self, pick: int, steps: int) -> None:
        self.cluster.compute(pick, steps)

    @precondition(lambda self: self.cluster.open_answers())
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        self.cluster.cancel(pick)

    @precondition(lambda self: self.cluster.movable())
    @rule(pick=picks, age_s=st.sampled_from([0.0, 3.0, 100.0]))
    def reserve(self, pick: int, age_s: float) -> None:
        self.cluster.reserve(pick, age_s)

    @precondition(lambda self: self.cluster.moves)
    @rule(pick=picks)
    def copy(self, pick: int) -> None:
        self.cluster.copy(pick)

    @precondition(lambda self: self.cluster.moves)
    @rule(pick=picks)
    def read(self, pick: int) -> None:
        self.cluster.read(pick)

    @precondition(lambda self: self.cluster.moves)
    @rule(pick=picks, steps=st.integers(0, 3))
    def hold(self, pick: int, steps: int) -> None:
        self.cluster.hold(pick, steps)

    @precondition(lambda self: self.cluster.settled())
    @rule(pick=picks, is_lost=st.booleans(), steps=st.integers(0, 5))
    def hand_over(self, pick: int, is_lost: bool, steps: int) -> None:
        self.cluster.hand_over(pick, is_lost, steps)

    @precondition(lambda self: self.cluster.moves)
    @rule(pick=picks)
    def abort(self, pick: int) -> None:
        self.cluster.abort_one(pick)

    @rule(pick=picks)
    def new_session(self, pick: int) -> None:
        self.cluster.new_session(pick)

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.finish()


TestMovesStates = MovesStates.TestCase
TestMovesStates.settings = hypothesis.settings(examples, stateful_step_count=40)


def act(cluster: Cluster, draw: np.random.Generator) -> None:
    """One action that is possible now."""
    pick, steps = int(draw.integers(12)), int(draw.integers(5))
    actions = [
        (3, True, lambda: cluster.compute(pick, 1 + steps)),
        (2, len(cluster.open_answers()) < 8, lambda: cluster.arrive(some_ask(draw), pick)),
        (0.2, cluster.open_answers(), lambda: cluster.cancel(pick)),
        (4, cluster.movable(), lambda: cluster.reserve(pick, float(draw.integers(50)))),
        (2, cluster.moves, lambda: cluster.copy(pick)),
        (2, cluster.moves, lambda: cluster.read(pick)),
        (2, cluster.moves, lambda: cluster.hold(pick, steps % 3)),
        (5, cluster.settled(), lambda: cluster.hand_over(pick, steps == 0, steps)),
        (0.3, cluster.moves, lambda: cluster.abort_one(pick)),
        (0.1, True, lambda: cluster.new_session(pick)),
    ]
    weights = np.array([weight * bool(possible) for weight, possible, _ in actions])
    actions[draw.choice(len(actions), p=weights / weights.sum())][2]()


def some_ask(draw: np.random.Generator) -> dict[str, Any]:
    return {
        "shared": int(draw.integers(4)),
        "length": int(draw.integers(1, 20)),
        "max_tokens": int(draw.integers(20, 64)),
        "seed": int(draw.integers(3)),
        "priority": int(draw.integers(-1, 2)),
        "stop_ids": (3, 4) if draw.integers(2) else (),
    }


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("rules", sorted(RULES))
def test_requests_that_move_all_the_time_get_the_tokens_of_an_undisturbed_run(rules: str, depth: int) -> None:
    draw = np.random.default_rng([depth, *rules.encode()])
    cluster = Cluster(rules, 4, depth)
    for _ in range(500):
        act(cluster, draw)
        cluster.check()
    cluster.finish()
    assert cluster.num_adopted >= 5
