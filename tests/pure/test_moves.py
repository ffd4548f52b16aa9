"""Several instances and the scheduler model, turned by hand, while requests move: whatever is lost, late or
killed, each answer is that of an undisturbed run, and nothing stays reserved.

The instances have toy engines, whose tokens are computed from the content of KV blocks. Only processes,
sockets and threads are left out: messages wait in `Network` until a test delivers them.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from python_backends.cluster.cluster import Cluster
from python_backends.cluster.move import MoveReason
from python_backends.cluster.router import Router
from python_backends.engine.toy.engine import ToyEngine
from python_backends.handover.moves import Moves
from python_backends.nouns.messages import Cancel, Failed, Hello, Load, Submit
from python_backends.nouns.moves import (
    AbortMove,
    Ack,
    Adopted,
    Blocks,
    Held,
    Last,
    MoveOut,
    Nak,
    Reserve,
    Resume,
)
from python_backends.nouns.request import Feedback, Finish, Request
from python_backends.nouns.step import Started, Tokens
from python_backends.scheduling.scheduler import SlotScheduler
from python_backends.settings import (
    ClusterSettings,
    EngineSettings,
    ModelSettings,
    SchedulingSettings,
    Settings,
    StreamSettings,
    ToySettings,
)
from python_backends.streams.stream import Stream
from python_backends.streams.table import FAILED_INSIDE, StreamTable
from python_backends.watching.cluster_files import MoveOrder, MoveResult
from python_backends.watching.metrics import Metrics
from python_backends.wires.blocks import DroppedFrames, Frame, Payload
from python_backends.wires.copier import Copier
from python_backends.wires.sessions import InstanceLost, InstanceMove, InstanceReady
from tests.pure.test_scheduler_states import RULES, asks, make_request
from tests.support.examples import examples
from tests.support.scheduling import VOCAB, request, write_vocabulary
from tests.support.toy_answers import toy_answer

SLOTS, BLOCKS, SIZE, MOST_TOKENS = 3, 80, 4, 100
STEP_S = 0.01
FRONT = "front"


@pytest.fixture(scope="module", autouse=True)
def model(tmp_path_factory: pytest.TempPathFactory) -> None:
    Host.model = write_vocabulary(tmp_path_factory.mktemp("toy"))


class Network:
    """Frames on their way, by sender and receiver; those of one pair stay in order."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.frames: defaultdict[tuple[str, str], deque[Any]] = defaultdict(deque)

    def put(self, sender: str, receiver: str, frame: Any) -> None:
        self.frames[sender, receiver].append(frame)

    def take(self, receiver: str, sender: str | None = None) -> list[tuple[str, Any]]:
        """What has come for `receiver`, in order of each sender."""
        taken = []
        for (source, target), frames in self.frames.items():
            if target == receiver and sender in (None, source):
                taken += [(source, frame) for frame in frames]
                frames.clear()
        return taken

    def drop(self, *, sender: str | None = None, receiver: str | None = None) -> None:
        for (source, target), frames in self.frames.items():
            if sender in (None, source) and receiver in (None, target):
                frames.clear()


class BlocksWire:
    """A host's end of the wire between instances."""

    def __init__(self, network: Network, endpoint: str) -> None:
        self.network, self.endpoint = network, endpoint
        self.dropped = DroppedFrames()

    def receive(self, timeout_s: float) -> list[Frame]:
        return [frame for _, frame in self.network.take(self.endpoint)]

    def send(self, to: str, message: Blocks | Last, payload: Payload) -> None:
        copied = memoryview(np.asarray(payload, np.uint8).tobytes())
        self.network.put(self.endpoint, to, Frame(self.endpoint.encode(), message, copied))

    def answer(self, sender: bytes, message: Ack | Nak) -> None:
        self.network.put(
            self.endpoint, sender.decode(), Frame(self.endpoint.encode(), message, memoryview(b""))
        )

    def keep(self, endpoints: Iterable[str]) -> None:
        pass

    def wake(self) -> None:
        pass

    def check_endpoint(self, endpoint: str) -> None:
        pass


class Host:
    """An instance, and its copier."""

    model: Path

    def __init__(self, network: Network, number: int, rules: str, depth: int) -> None:
        self.network, self.number, self.depth = network, number, depth
        engine = EngineSettings(kind="toy", slots=SLOTS, kv_blocks=BLOCKS, block_tokens=SIZE)
        settings = ModelSettings(str(Host.model), max_model_tokens=MOST_TOKENS + 1)
        self.engine = ToyEngine(Settings(model=settings, engine=engine, toy=ToySettings()))
        policy, reserve = RULES[rules]
        clock = lambda: network.now_s  # noqa: E731
        self.scheduler = SlotScheduler(
            self.engine.limits, 16, SchedulingSettings(policy), reserve, clock=clock
        )
        self.copier = Copier(BlocksWire(network, f"blocks-{number}"), self.engine, 1.0, clock, clock)  # type: ignore[arg-type]
        self.moves = Moves(self.scheduler, self.copier, 2, depth - 1, clock)
        self.launched: deque[Any] = deque()
        self.session = -1

    @property
    def name(self) -> str:
        return f"instance-{self.number}"

    def say(self, *messages: Any) -> None:
        self.network.put(self.name, FRONT, (self.session, list(messages)))

    def take(self) -> None:
        """The messages that have come."""
        for _, (session, messages) in self.network.take(self.name):
            if session != self.session:
                self.session = session
                self.moves.new_session()
                self.scheduler.cancel_all()
                self.say(Hello(self.engine.limits, "", f"blocks-{self.number}", self.engine.kv_format))
            for message in messages:
                self.read(message)

    def read(self, message: Any) -> None:
        if isinstance(message, Submit):
            self.scheduler.submit(message.request, message.delivered, message.request_epoch, message.age_s)
            self.last_submit = message.number
        elif isinstance(message, Cancel):
            self.scheduler.cancel(message.request_id, message.request_epoch)
        elif isinstance(message, Reserve | MoveOut | AbortMove | Resume):
            self.say(*self.moves.take(message))

    last_submit = 0

    def turn(self) -> bool:
        """Whether it did something."""
        self.take()
        before = self.scheduler.num_steps
        self.say(*self.moves.step())
        self.say(*self.scheduler.take_started())
        plan = self.scheduler.plan()
        if plan is not None:
            self.engine.launch(plan)
            self.launched.append(plan)
        if self.launched and (plan is None or len(self.launched) >= self.depth):
            self.say(self.scheduler.apply(self.launched.popleft(), self.engine.collect()))
        self.say(self.scheduler.load().changed(last_submit=self.last_submit))
        self.scheduler.check_integrity()
        return self.scheduler.num_steps > before or bool(self.launched)

    def copy(self) -> None:
        """A turn of the copier's thread."""
        self.copier._turn()


class Front:
    """The scheduler model's streams, router and moves, and a detokenizer that confirms at once."""

    def __init__(self, network: Network, num_instances: int, policy: str, **settings: Any) -> None:
        self.network = network
        chosen = ClusterSettings(
            instances=num_instances, policy=policy, **{"balance_every_s": STEP_S, **settings}
        )
        self.metrics = Metrics()
        self.router = Router(chosen)
        clock = lambda: network.now_s  # noqa: E731
        streams = StreamSettings()
        self.table = StreamTable(
            streams, lambda: int(network.now_s * 1e9), lambda words: 4, self.metrics, self.router
        )
        self.cluster = Cluster(chosen, self.router, self.table, self.metrics, clock)
        self.sessions = dict.fromkeys(range(num_instances), 0)
        self.known: set[int] = set()  # instances with a session
        self.answers: dict[int, tuple[list[int], Finish]] = {}  # of streams that have ended
        self.outbox: defaultdict[int, list[Any]] = defaultdict(list)
        for number in self.sessions:
            self.post(number, [])

    def post(self, number: int, messages: list[Any]) -> None:
        self.network.put(FRONT, f"instance-{number}", (self.sessions[number], messages))

    def accept(self, ask: Request) -> None:
        assert not self.table.accept(ask, None)

    def lose(self, number: int) -> None:
        """The instance was silent for too long."""
        self.sessions[number] += 1
        if number in self.known:
            self.known.discard(number)
            self.router.lost(number)
            self.table.instance_lost(number)
            self.cluster.lost(InstanceLost(number))
        self.post(number, [])

    def hear(self, number: int, message: Any) -> None:
        if isinstance(message, Hello):
            assert message.limits is not None
            self.known.add(number)
            self.router.ready(number, message.limits)
            self.table.instance_ready(number)
            self.cluster.ready(InstanceReady(number, message))
        elif isinstance(message, Started):
            self.table.started(message)
        elif isinstance(message, Tokens):
            self.table.tokens(message)
        elif isinstance(message, Load):
            self.router.heard(number, message)
        elif isinstance(message, Failed):
            self.table.failed(message)
        else:
            self.cluster.heard(InstanceMove(number, message))

    def turn(self, sender: str | None = None) -> None:
        """Takes what has come from `sender`, or from all, and answers."""
        for source, (session, messages) in self.network.take(FRONT, sender):
            number = int(source.rpartition("-")[2])
            if session == self.sessions[number]:
                for message in messages:
                    self.hear(number, message)
        self.cluster.look()
        for number in self.known & (outbox := self.table.outbox()).keys():
            self.post(number, outbox[number])
        self.answer()

    def answer(self) -> None:
        for outgoing in self.table.due():
            assert outgoing.error != FAILED_INSIDE
            if outgoing.window is not None:
                self.table.handed_over(outgoing, int(self.network.now_s * 1e9))
                window = outgoing.window
                count = window.start + len(window.tokens)
                self.table.feedback(Feedback(outgoing.request_id, count, answered=True))
        for stream in self.table.take_ended():
            self.answers[stream.request_id] = list(stream.tokens), stream.finish
        self.table.check_integrity()

    def outcomes(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (name, labels), count in self.metrics.counters.items():
            if name == "gapless_migrations_total":
                counts[dict(labels)["outcome"]] += int(count)
        return counts


class World:
    def __init__(
        self,
        num_instances: int = 2,
        policy: str = "round_robin",
        rules: str = "fcfs",
        depth: int = 1,
        **settings: Any,
    ) -> None:
        self.network = Network()
        self.rules, self.depth = rules, depth
        self.hosts = [Host(self.network, number, rules, depth) for number in range(num_instances)]
        self.front = Front(self.network, num_instances, policy, **settings)
        self.asked: dict[int, Request] = {}
        self.turn()
        self.turn()

    def ask(self, ask: Request) -> None:
        self.asked[ask.request_id] = ask
        self.front.accept(ask)

    def tick(self, seconds: float = STEP_S) -> None:
        self.network.now_s += seconds

    def turn(self) -> None:
        """Everything takes a turn."""
        self.tick()
        self.front.turn()
        for host in self.hosts:
            host.turn()
            host.copy()

    def kill(self, number: int) -> None:
        """The process ends with everything in it, and is replaced."""
        name = f"instance-{number}"
        for end in (name, f"blocks-{number}"):
            self.network.drop(receiver=end)
        self.network.drop(sender=name)
        self.hosts[number] = Host(self.network, number, self.rules, self.depth)

    def finish(self) -> None:
        for _ in range(5_000):
            if not len(self.front.table):
                break
            self.turn()
            self.tick(0.05)
        assert not len(self.front.table), "every request has its one final answer"
        for _ in range(50):
            self.turn()
        self.tick(400.0)
        for _ in range(20):
            self.turn()
        for host in self.hosts:
            assert host.scheduler.is_idle, f"instance {host.number} keeps something"
            assert host.scheduler.blocks.num_used == 0
            assert not host.moves.is_active
        assert not len(self.front.cluster._moves)

    def check(self, number: int) -> None:
        ask = self.asked[number]
        tokens, finish = self.front.answers[number]
        whole = toy_answer(ask.prompt, ask.sampling, VOCAB)
        if finish is Finish.CANCELLED:
            assert tokens == whole[: len(tokens)]
        else:
            assert tokens == whole

    def check_all(self) -> None:
        self.finish()
        assert self.front.answers.keys() == self.asked.keys()
        for number in self.asked:
            self.check(number)

    def move(self, request_id: int, destination: int) -> None:
        stream = self.front.table.find(request_id)
        assert stream is not None
        assert self.front.cluster._moves.can_leave(stream)
        self.front.cluster._moves.start(stream, destination, MoveReason.SHUFFLE)

    def where(self, request_id: int) -> int:
        stream = self.front.table.find(request_id)
        assert stream is not None
        return stream.instance

    def until(self, condition: Any, most: int = 200) -> None:
        for _ in range(most):
            if condition():
                return
            self.turn()
        raise AssertionError("did not come true")

    def num_tokens(self, request_id: int) -> int:
        stream = self.front.table.find(request_id)
        return 0 if stream is None else len(stream.tokens)


def two(**options: Any) -> World:
    """Two instances; request 1 has some tokens, in instance 0."""
    world = World(**options)
    world.ask(request(1, [5, 8, 9], max_tokens=90, min_tokens=90))
    world.until(lambda: world.num_tokens(1) > 8)
    assert world.where(1) == 0
    return world


def said(world: World, number: int, kind: type) -> bool:
    """Whether a message of this kind is on its way from the instance to the scheduler model."""
    frames = world.network.frames[f"instance-{number}", FRONT]
    return any(isinstance(each, kind) for _, messages in frames for each in messages)


def turn_until_said(world: World, number: int, kind: type) -> None:
    """Everything takes turns until the instance has said this; the scheduler model has not heard it yet."""
    for _ in range(50):
        world.tick()
        world.front.turn()
        for host in world.hosts:
            host.turn()
            host.copy()
        if said(world, number, kind):
            return
    raise AssertionError("it was not said")


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_moves_and_its_answer_stays_the_same(depth: int) -> None:
    world = two(depth=depth)
    world.move(1, 1)
    world.until(lambda: world.where(1) == 1)
    before = world.num_tokens(1)
    world.until(lambda: world.num_tokens(1) > before)
    assert not world.hosts[0].scheduler.find(1), "the source has let it go"
    world.check_all()
    assert world.front.outcomes() == {"done": 1}


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
    assert order_to_move(world, 1, 1).is_done
    world.turn()
    older, younger = (world.hosts[1].scheduler.find(number) for number in (1, 2))
    assert older is not None
    assert younger is not None
    assert older.arrival < younger.arrival
    world.check_all()
    assert world.front.outcomes() == {"done": 1}


def order_to_move(world: World, request_id: int, instance: int) -> MoveResult:
    """Orders it as `launcher.control move` does. Returns what became of it."""
    number = int(world.network.now_s * 1e9)
    world.front.cluster.ask_move(MoveOrder(number, request_id, instance))
    world.until(lambda: world.front.cluster.move_result is not None)
    result = world.front.cluster.move_result
    assert result is not None
    assert result.number == number
    return result


def test_an_order_moves_one_request_and_says_when_it_is_there() -> None:
    world = two()
    result = order_to_move(world, 1, 1)
    assert result.is_done
    assert result.text.startswith("request 1 is in instance 1 after ")
    assert world.where(1) == 1
    assert world.hosts[0].copier.num_sent_bytes > 0
    world.check_all()
    assert world.front.outcomes() == {"done": 1}


def test_an_order_that_can_not_be_carried_out_says_why() -> None:
    world = two()
    texts = [order_to_move(world, *order).text for order in [(7, 1), (1, 0), (1, 9)]]
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
    assert order_to_move(world, 6, 0).text == full, "all slots are busy there"
    world.check_all()
    off = two(move="off")
    assert order_to_move(off, 1, 1).text == "request 1 can't move: cluster.move is off"
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
    assert order_to_move(world, 7, there).text == (
        f"request 7 was submitted to instance {there}, which computes its tokens again"
    )
    world.check_all()


def test_a_request_that_is_cancelled_while_it_moves_ends_at_both() -> None:
    for kind in (Held, Adopted):
        world = two()
        world.move(1, 1)
        turn_until_said(world, 0 if kind is Held else 1, kind)
        world.front.table.feedback(Feedback(1, 0, gone=True))
        world.check_all()
        assert world.front.answers[1][1] is Finish.CANCELLED


def test_if_the_destination_is_silent_the_source_goes_on() -> None:
    world = two()
    world.move(1, 1)
    turn_until_said(world, 0, Held)
    world.front.turn()
    [move] = world.front.cluster._moves._moves.values()
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
    world.hosts[0].take()
    world.hosts[0].say(scheduler.load().changed(last_submit=world.hosts[0].last_submit))
    world.front.turn("instance-0")
    assert world.front.outcomes() == {"ended": 1}


def test_an_evicted_request_does_not_move_before_it_has_a_slot_again() -> None:
    world = two()
    evict(world)
    stream = world.front.table.find(1)
    assert stream is not None
    assert not world.front.cluster._moves.can_leave(stream)
    world.until(lambda: stream.seated)
    assert world.front.cluster._moves.can_leave(stream)
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
        if said(world, 0, Held) and world.network.frames["instance-1", FRONT]:
            continue
        if not said(world, 0, Held):
            world.front.turn("instance-0")
    world.check_all()


@pytest.mark.parametrize("kind", [None, Held, Adopted], ids=["while copying", "held", "adopted"])
@pytest.mark.parametrize("number", [0, 1], ids=["source", "destination"])
def test_an_instance_dies_while_a_request_moves(kind: type | None, number: int) -> None:
    world = two()
    world.move(1, 1)
    if kind is None:
        world.turn()
    else:
        turn_until_said(world, 0 if kind is Held else 1, kind)
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
    world = World(policy=policy, low_tokens=64, priority_headroom_tokens=300)
    world.front.cluster.order(frozenset({0}))
    for number in range(1, 4):
        world.ask(request(number, [number] * 30, max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(3) > 1)
    world.front.cluster.order(frozenset())
    world.until(lambda: {world.where(number) for number in (1, 2, 3)} == {0, 1})
    world.check_all()


def test_a_drained_instance_is_left_by_all_and_gets_no_request() -> None:
    world = World()
    for number in range(1, 4):
        world.ask(request(number, [5, number, 9], max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(3) > 4)
    assert world.where(2) == 1
    world.front.cluster.order(frozenset({1}))
    world.ask(request(4, [3, 3], max_tokens=5))
    world.until(lambda: world.where(2) == 0)
    world.until(lambda: world.hosts[1].scheduler.is_idle)
    assert world.num_tokens(2) < 60
    world.check_all()
    assert world.front.router.num_dispatches == {0: 3, 1: 1}
    assert world.front.outcomes() == {"done": 1}


def test_an_instance_that_is_not_wanted_any_more_is_emptied_and_its_end_is_no_loss() -> None:
    world = World()
    for number in range(1, 5):
        world.ask(request(number, [5, number, 9], max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(4) > 4)
    assert [world.where(number) for number in (1, 2, 3, 4)] == [0, 1, 0, 1]
    cluster = world.front.cluster
    cluster.order(frozenset(), 1)
    world.until(lambda: world.where(2) == 0)
    assert cluster.wanted == {0, 1}, "one request is still there: the other instance has three slots"
    world.until(lambda: cluster.wanted == {0})
    assert [view.number for view in world.front.router.views] == [0]
    assert world.front.table.submissions.instances.ready == [0]
    world.check_all()
    assert world.front.outcomes()["done"] == 1


def test_a_request_that_waits_goes_where_it_can_start() -> None:
    """Instance 0 gets everything, and then another instance is there."""
    world = World(policy="ours")
    world.front.cluster.order(frozenset({1}))
    for number in range(1, 6):
        world.ask(request(number, [number] * 5, max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(3) > 2)
    world.front.cluster.order(frozenset())
    world.until(lambda: world.num_tokens(4) > 0)
    assert world.where(4) == 1
    world.check_all()


@pytest.mark.parametrize(("policy", "moves"), [("ours", True), ("infaas", False)])
def test_a_running_request_leaves_memory_to_one_that_waits(
    policy: str, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 60 blocks of 4 tokens 46 are promised in instance 0, and 25 in instance 1; request 4 needs 25."""
    monkeypatch.setattr(sys.modules[__name__], "BLOCKS", 60)
    world, places = World(policy=policy), {1: 0, 2: 0, 3: 1, 4: 0}

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
    world = World(policy="shuffle", move="recompute")
    world.ask(request(1, [5, 8, 9], max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(1) > 2)
    here = world.where(1)
    world.until(lambda: world.where(1) != here)
    world.check_all()
    assert world.front.outcomes()["done"] >= 1
    assert not world.front.metrics.histograms["gapless_migration_seconds"].sum, "no blocks were copied"


def test_no_request_moves_if_the_settings_say_so() -> None:
    world = World(policy="shuffle", move="off")
    world.ask(request(1, [5, 8, 9], max_tokens=60, min_tokens=60))
    world.until(lambda: world.num_tokens(1) > 2)
    here = world.where(1)
    for _ in range(30):
        world.turn()
        assert world.front.table.find(1) is None or world.where(1) == here
    world.check_all()
    assert not world.front.outcomes()


class MovingRequests(RuleBasedStateMachine):
    """Requests move at random between three instances. Wires are delivered in any order, and instances are
    killed, given up and cut off.
    """

    @initialize(rules=st.sampled_from(sorted(RULES)), depth=st.integers(1, 2))
    def begin(self, rules: str, depth: int) -> None:
        self.world = World(3, "shuffle", rules, depth, max_moves=2)
        self.number = 0
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
