"""Requests move between several instances: whatever is lost, late or killed, each answer is that of an
undisturbed run, and nothing stays reserved.
"""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from python_backends.moving.copier import Copier
from python_backends.moving.wire import Payload
from python_backends.nouns.moves import Adopted, Blocks, Last, Suspended
from python_backends.nouns.request import Feedback, Finish
from python_backends.nouns.stages import READ_EVERY
from python_backends.streams.stream import Stream
from tests.pure.test_scheduler_states import asks, make_request
from tests.support.examples import examples
from tests.support.moving import (
    BLOCKS,
    FRONT,
    SIZE,
    BlocksWire,
    World,
    check_seats,
    model,
    order_to_move,
    orders_to_move,
    said,
    turn_until_said,
    two,
)
from tests.support.scheduling import RULES, request
from tests.support.shuffle import SHUFFLE

__all__ = ["model"]  # a fixture


@pytest.mark.parametrize("rules", sorted(RULES))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_request_moves_and_its_answer_stays_the_same(depth: int, rules: str) -> None:
    world = two(depth=depth, rules=rules)
    world.move(1, 1)
    world.until(lambda: world.where(1) == 1)
    before = world.num_tokens(1)
    world.until(lambda: world.num_tokens(1) > before)
    assert not world.hosts[0].scheduler.find(1), "the source has let it go"
    world.check_all()
    assert world.front.outcomes() == {"done": 1}
    read = range(0, len(world.front.answers[1][0]), READ_EVERY)
    assert len(read) > 2
    assert sorted(world.front.read) == [(1, written) for written in read], "each hidden state once"


def test_most_blocks_are_copied_before_the_hold_however_fast_copying_seems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Blocks | Last] = []
    send = BlocksWire.send

    def note(wire: BlocksWire, to: str, message: Blocks | Last, payload: Payload) -> None:
        sent.append(message)
        send(wire, to, message, payload)

    monkeypatch.setattr(BlocksWire, "send", note)
    monkeypatch.setattr(Copier, "copy_s", lambda *_: -1.0)
    world = two()
    world.until(lambda: world.num_tokens(1) > 30)
    world.move(1, 1)
    world.until(lambda: world.where(1) == 1)
    *rounds, last = sent
    assert isinstance(last, Last)
    assert all(isinstance(each, Blocks) for each in rounds)
    assert sum(each.count for each in rounds) >= 30 // SIZE > last.count


def test_a_moved_request_keeps_its_age() -> None:
    """Else it would be the youngest at its destination, and the first to be evicted."""
    world = two()
    world.ask(request(2, [7, 7], max_tokens=40, min_tokens=40))
    world.front.turn()
    assert world.where(2) == 1
    world.turn()
    world.move(1, 1)
    world.until(lambda: world.where(1) == 1)
    older, younger = (world.hosts[1].scheduler.find(number) for number in (1, 2))
    assert older is not None
    assert younger is not None
    assert older.arrival < younger.arrival
    world.check_all()


def test_a_request_that_is_submitted_elsewhere_keeps_its_age() -> None:
    world = two(move="recompute")
    world.ask(request(2, [7, 7], max_tokens=40, min_tokens=40))
    world.front.turn()
    world.turn()
    assert "done" in order_to_move(world, 1, 1)
    world.turn()
    older, younger = (world.hosts[1].scheduler.find(number) for number in (1, 2))
    assert older is not None
    assert younger is not None
    assert older.arrival < younger.arrival
    world.check_all()
    assert world.front.outcomes() == {"done": 1}


def test_orders_that_come_while_another_is_carried_out_get_their_own_answers() -> None:
    world = World(3)
    for number in (1, 2, 3):
        world.ask(request(number, [5, 8, number], max_tokens=90, min_tokens=90))
    world.until(lambda: min(world.num_tokens(number) for number in (1, 2, 3)) > 8)
    answers = orders_to_move(world, (1, 2), (2, 2), (2, 0), (3, 9))
    assert [next(iter(answer)) for answer in answers] == ["done", "done", "refused", "refused"]
    assert [world.where(number) for number in (1, 2, 3)] == [2, 2, 2]
    world.check_all()


def test_an_order_moves_one_request_and_says_when_it_is_there() -> None:
    world = two()
    assert order_to_move(world, 1, 1)["done"].startswith("request 1 is in instance 1 after ")
    assert world.where(1) == 1
    assert world.hosts[0].copier.num_sent_bytes > 0
    world.check_all()
    assert world.front.outcomes() == {"done": 1}


def test_an_order_that_can_not_be_carried_out_says_why() -> None:
    world = two()
    texts = [order_to_move(world, *order)["refused"] for order in [(7, 1), (1, 0), (1, 9)]]
    assert texts == [
        "there is no open request 7",
        "request 1 can't move: it is in instance 0 already",
        "request 1 can't move: instance 9 gets no requests now",
    ]
    for number in range(2, 6):
        world.ask(request(number, [number] * 3, max_tokens=90, min_tokens=90))
    world.until(lambda: all(world.num_tokens(number) for number in range(2, 6)))
    world.ask(request(6, [7, 7], max_tokens=90, min_tokens=90))
    world.until(lambda: world.num_tokens(6) > 1)
    full = "request 6 did not move to instance 0: refused"
    assert order_to_move(world, 6, 0)["refused"] == full, "all slots are busy there"
    world.check_all()
    off = two(move="off")
    assert order_to_move(off, 1, 1)["refused"] == "request 1 can't move: cluster.move is off"
    off.check_all()


def test_a_request_without_a_slot_is_submitted_elsewhere_by_order() -> None:
    world = two()
    for number in range(2, 8):
        world.ask(request(number, [number] * 3, max_tokens=90, min_tokens=90))
    world.until(lambda: world.num_tokens(6) > 0)
    stream = world.front.table.find(7)
    assert stream is not None
    world.turn()
    assert not stream.seated
    there = 1 - stream.instance
    assert order_to_move(world, 7, there)["done"] == (
        f"request 7 was submitted to instance {there}, which computes its tokens again"
    )
    world.check_all()


def test_a_request_that_is_cancelled_while_it_moves_ends_at_both() -> None:
    for kind in (Suspended, Adopted):
        world = two()
        world.move(1, 1)
        turn_until_said(world, 0 if kind is Suspended else 1, kind)
        world.front.table.feedback(Feedback(1, 0, gone=True))
        world.check_all()
        assert world.front.answers[1][1] is Finish.CANCELLED


def test_if_the_destination_is_silent_the_source_goes_on() -> None:
    world = two()
    world.move(1, 1)
    turn_until_said(world, 0, Suspended)
    world.front.turn()
    [move] = world.front.cluster._coordinator._moves.values()
    before, due_s = world.num_tokens(1), move.due_s
    assert due_s < world.network.now_s + 1.01
    while world.num_tokens(1) == before and world.network.now_s < due_s + 1.0:
        world.tick()  # the destination is stopped
        world.front.turn()
        world.hosts[0].turn()
        world.hosts[0].copy()
    assert world.where(1) == 0
    assert world.num_tokens(1) > before, "within a second after that"
    assert world.front.outcomes() == {"timeout": 1}
    world.check_all()


def test_a_commit_that_comes_too_late_is_void() -> None:
    """The destination has adopted the request and computes, but the scheduler model hears of it late."""
    world = two()
    world.move(1, 1)
    turn_until_said(world, 1, Adopted)
    for _ in range(150):
        world.tick()
        world.front.turn("instance-0")
        for host in world.hosts:
            host.turn()
    assert world.front.outcomes() == {"timeout": 1}
    assert world.where(1) == 0
    world.check_all()
    assert world.front.outcomes() == {"timeout": 1}


def evict(world: World) -> None:
    """Request 1 is evicted while its move begins, and the scheduler model hears that it can't move."""
    world.move(1, 1)
    world.front.turn()
    world.hosts[1].turn()
    world.front.turn()
    scheduler = world.hosts[0].scheduler
    sequence = scheduler.find(1)
    assert sequence is not None
    scheduler._evict(sequence)
    world.hosts[0].publish(scheduler.take_evicted())
    world.hosts[0].loop._take_inbox()
    world.hosts[0].loop._beat_if_due()
    world.front.turn("instance-0")
    assert world.front.outcomes() == {"ended": 1}


def test_an_evicted_request_does_not_move_before_it_has_a_slot_again() -> None:
    world = two()
    evict(world)
    stream = world.front.table.find(1)
    assert stream is not None
    assert not world.front.cluster._coordinator.can_leave(stream)
    world.until(lambda: stream.seated)
    assert world.front.cluster._coordinator.can_leave(stream)
    world.check_all()


def test_an_evicted_request_waits_where_it_ran() -> None:
    world = two(policy="ours")
    evict(world)
    for _ in range(20):
        world.tick()
        world.front.turn("instance-0")
    assert world.where(1) == 0
    world.check_all()


def test_tokens_of_the_source_may_come_after_those_of_the_destination() -> None:
    world = two()
    world.move(1, 1)
    for _ in range(30):
        world.tick()
        world.front.turn("instance-1")
        for host in world.hosts:
            host.turn()
            host.copy()
        if world.front.outcomes()["done"]:
            break
        if said(world, 0, Suspended) and world.network.frames["instance-1", FRONT]:
            continue
        if not said(world, 0, Suspended):
            world.front.turn("instance-0")
    world.check_all()


@pytest.mark.parametrize("kind", [None, Suspended, Adopted], ids=["while copying", "suspended", "adopted"])
@pytest.mark.parametrize("number", [0, 1], ids=["source", "destination"])
def test_an_instance_dies_while_a_request_moves(kind: type | None, number: int) -> None:
    world = two()
    world.move(1, 1)
    if kind is None:
        world.turn()
    else:
        turn_until_said(world, 0 if kind is Suspended else 1, kind)
    world.kill(number)
    world.front.lose(number)
    world.check_all()


def test_a_request_that_gets_blocks_faster_than_they_are_copied_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Copier, "copy_s", lambda *_: 1.0)
    world = two()
    world.until(lambda: world.num_tokens(1) > 3 * SIZE)
    world.move(1, 1)
    for turn in range(60):
        world.tick()
        world.front.turn()
        for host in world.hosts:
            host.turn()
        for host in world.hosts * 8 if turn % (2 * SIZE) == 0 else []:
            host.copy()
    assert world.front.outcomes() == {"too_slow": 1}
    assert world.where(1) == 0
    world.check_all()


def test_a_destination_without_a_slot_refuses_and_the_request_stays() -> None:
    world = World()
    for number in range(1, 7):
        world.ask(request(number, [5, number, 9], max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(6) > 4)
    world.move(1, 1)
    world.until(lambda: world.front.outcomes()["refused"] == 1)
    world.check_all()


@pytest.mark.parametrize("policy", ["ours", "llumnix", "llumnix_base"])
def test_requests_leave_an_instance_that_has_little_memory_left(policy: str) -> None:
    world = World(policy=policy)
    world.front.cluster.scaling.drain(0)
    for number in range(1, 4):
        world.ask(request(number, [number] * 30, max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(3) > 1)
    world.front.cluster.scaling.restore(0)
    world.until(lambda: {world.where(number) for number in (1, 2, 3)} == {0, 1})
    world.check_all()


def test_a_drained_instance_is_left_by_all_and_gets_no_request() -> None:
    world = World()
    for number in range(1, 4):
        world.ask(request(number, [5, number, 9], max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(3) > 4)
    assert world.where(2) == 1
    world.front.cluster.scaling.drain(1)
    world.ask(request(4, [3, 3], max_tokens=5))
    world.until(lambda: world.where(2) == 0)
    world.until(lambda: world.hosts[1].scheduler.is_idle)
    assert world.num_tokens(2) < 60
    world.check_all()
    assert world.front.router.num_dispatches == {0: 3, 1: 1}
    assert world.front.outcomes() == {"done": 1}


def test_a_move_to_an_instance_that_is_to_be_empty_ends() -> None:
    world = two()
    world.move(1, 1)
    world.turn()
    assert world.front.cluster.num_left(1) == 1
    world.front.cluster.scaling.drain(1)
    world.turn()
    assert world.front.cluster.num_left(1) == 0
    world.turn()
    assert world.where(1) == 0
    assert world.front.outcomes() == {"refused": 1}
    world.check_all()


def test_an_instance_that_is_not_wanted_any_more_is_emptied_and_its_end_is_no_loss() -> None:
    world = World()
    for number in range(1, 5):
        world.ask(request(number, [5, number, 9], max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(4) > 4)
    assert [world.where(number) for number in (1, 2, 3, 4)] == [0, 1, 0, 1]
    cluster = world.front.cluster
    cluster.scaling.scale(1)
    world.until(lambda: world.where(2) == 0)
    assert cluster.wanted == {0, 1}, "one request is still there: the other instance has three slots"
    world.until(lambda: cluster.wanted == {0})
    assert [load.number for load in world.front.router.loads] == [0]
    assert world.front.table.submissions.instances.ready == [0]
    world.check_all()
    assert world.front.outcomes()["done"] == 1


def test_a_request_that_waits_goes_where_it_can_start() -> None:
    """Instance 0 gets everything, and then another instance is there."""
    world = World(policy="ours")
    world.front.cluster.scaling.drain(1)
    for number in range(1, 6):
        world.ask(request(number, [number] * 5, max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(3) > 2)
    world.front.cluster.scaling.restore(1)
    world.until(lambda: world.num_tokens(4) > 0)
    assert world.where(4) == 1
    world.check_all()


@pytest.mark.parametrize(("policy", "moves"), [("ours", True), ("infaas", False)])
def test_a_running_request_leaves_memory_to_one_that_waits(
    policy: str, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 60 blocks of 4 tokens 46 are promised in instance 0, and 25 in instance 1; request 4 needs 25."""
    world, places = World(policy=policy, blocks=60), {1: 0, 2: 0, 3: 1, 4: 0}

    def choose(stream: Stream, allowed: list[int]) -> int | None:
        place = places[stream.request_id]
        return place if place in allowed else None

    monkeypatch.setattr(world.front.router, "choose", choose)
    for number, count in ((1, 90), (2, 74), (3, 90)):
        world.ask(request(number, [number] * 10, max_tokens=count, min_tokens=count))
    world.until(lambda: world.num_tokens(3) > 1)
    world.ask(request(4, [4] * 80, max_tokens=20, min_tokens=20))
    world.until(lambda: world.num_tokens(4) > 0)
    assert (world.front.outcomes()["done"] > 0) is moves
    world.check_all()


def test_a_moved_request_is_computed_again_where_blocks_are_not_copied() -> None:
    world = World(policy=SHUFFLE, move="recompute")
    world.ask(request(1, [5, 8, 9], max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(1) > 2)
    here = world.where(1)
    world.until(lambda: world.where(1) != here)
    world.check_all()
    assert world.front.outcomes()["done"] >= 1
    assert not world.front.metrics.histograms["gapless_migration_seconds"].sum, "no blocks were copied"


def test_no_request_moves_if_the_settings_say_so() -> None:
    world = World(policy=SHUFFLE, move="off")
    world.ask(request(1, [5, 8, 9], max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(1) > 2)
    here = world.where(1)
    for _ in range(30):
        world.turn()
        assert world.front.table.find(1) is None or world.where(1) == here
    world.check_all()
    assert not world.front.outcomes()


@pytest.mark.parametrize("policy", ["round_robin", "ours", SHUFFLE])
def test_the_scheduler_model_knows_who_has_a_slot_through_evictions_and_moves(policy: str) -> None:
    """Else the queue that refuses requests is counted wrong, and the wrong ones are blamed for a crash."""
    world = World(2, policy, rules="fcfs that reserves nothing", blocks=40)
    world.front.cluster.scaling.drain(1)
    for number in range(1, 5):
        world.ask(request(number, [number] * 30, max_tokens=60, min_tokens=60))
    for turn in range(150):
        world.turn()
        world.front.turn()
        check_seats(world)
        if turn == 40:
            assert world.hosts[0].scheduler.num_evictions
            world.front.cluster.scaling.restore(1)
    world.check_all()


def test_a_request_whose_tokens_are_computed_again_does_not_move_before_the_next_one() -> None:
    """The source would refuse, after the destination has kept a slot and memory for it."""
    world = World()
    world.ask(request(1, [5, 8, 9] * 15, max_tokens=40, min_tokens=40))
    world.until(lambda: world.num_tokens(1) > 8)
    stream = world.front.table.find(1)
    assert stream is not None
    count = len(stream.tokens)
    world.front.table.submissions.submit_elsewhere(stream, 1, int(world.network.now_s * 1e9))
    world.until(lambda: stream.seated)
    assert len(stream.tokens) == count
    assert not world.front.cluster._coordinator.can_leave(stream)
    world.until(lambda: len(stream.tokens) > count)
    assert world.front.cluster._coordinator.can_leave(stream)
    world.check_all()


@pytest.mark.parametrize("rules", sorted(RULES))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_requests_that_move_whenever_they_can_get_the_tokens_of_an_undisturbed_run(
    depth: int, rules: str
) -> None:
    """Memory is short: some are evicted under most policies."""
    world = World(rules=rules, depth=depth, blocks=30)
    for number in range(1, 6):
        drawn = {"max_tokens": 60, "temperature": 1.0, "seed": number}
        world.ask(request(number, [5, 8, number % 3] * (1 + number % 5), **drawn))
    while len(world.front.table):
        world.turn()
        for stream in list(world.front.table.streams):
            if world.front.cluster._coordinator.can_leave(stream):
                world.move(stream.request_id, 1 - stream.instance)
    world.check_all()
    assert world.front.outcomes()["done"] > 1


class MovingRequests(RuleBasedStateMachine):
    """Requests move at random between three instances. Wires are delivered in any order, and instances are
    killed, given up and cut off.
    """

    @initialize(
        rules=st.sampled_from(sorted(RULES)),
        depth=st.integers(1, 3),
        slots=st.sampled_from([1, 2, 3]),
        is_crowded=st.booleans(),
    )
    def begin(self, rules: str, depth: int, slots: int, is_crowded: bool) -> None:
        blocks = 26 if is_crowded else BLOCKS
        self.world = World(3, SHUFFLE, rules, depth, slots, blocks, max_moves=2)
        self.number = 6 if is_crowded else 0
        for number in range(1, self.number + 1):  # these have memory for one at a time, and are evicted
            self.world.ask(request(number, [number] * 20, max_tokens=60, min_tokens=60))
        self.num_deaths = 0

    @rule(ask=asks)
    @precondition(lambda self: self.number < 12)
    def a_request_comes(self, ask: Any) -> None:
        self.number += 1
        self.world.ask(make_request(self.number, **ask))

    @rule(count=st.integers(1, 12))
    def all_take_turns(self, count: int) -> None:
        for _ in range(count):
            self.world.turn()
        self.world.front.turn()
        check_seats(self.world)

    @rule(number=st.integers(0, 2), count=st.integers(1, 4))
    def an_instance_takes_turns(self, number: int, count: int) -> None:
        for _ in range(count):
            self.world.tick()
            self.world.hosts[number].turn()

    @rule(number=st.integers(0, 2))
    def a_copier_takes_a_turn(self, number: int) -> None:
        self.world.hosts[number].copy()

    @rule(number=st.integers(0, 2))
    def the_scheduler_model_hears_one_instance(self, number: int) -> None:
        self.world.front.turn(f"instance-{number}")

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.5]))
    def time_passes(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule(number=st.integers(1, 12))
    def a_client_goes_away(self, number: int) -> None:
        if self.world.front.table.find(number) is not None:
            self.world.front.table.feedback(Feedback(number, 0, gone=True))

    @rule(number=st.integers(0, 2))
    def blocks_on_their_way_to_an_instance_are_lost(self, number: int) -> None:
        self.world.network.drop(receiver=f"blocks-{number}")

    @rule(number=st.integers(0, 2), heard_s=st.sampled_from([0.0, 0.3]))
    @precondition(lambda self: self.num_deaths < 1)
    def an_instance_dies(self, number: int, heard_s: float) -> None:
        self.num_deaths += 1
        self.world.kill(number)
        self.world.tick(heard_s)
        self.world.front.lose(number)

    @rule(number=st.integers(0, 2))
    @precondition(lambda self: self.num_deaths < 1)
    def an_instance_is_given_up_but_only_slept(self, number: int) -> None:
        self.num_deaths += 1
        self.world.front.lose(number)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_all()


TestMovingRequests = MovingRequests.TestCase
TestMovingRequests.settings = hypothesis.settings(examples, stateful_step_count=40)
