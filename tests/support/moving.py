"""Several instances and the scheduler model, turned by hand, whose requests move. The instances have toy
engines, whose tokens are computed from the content of KV blocks: a block that was not copied, was copied too
early or was given to another request changes the answer. Only processes, sockets and threads are left out:
messages wait in `Network` until a test delivers them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.policies import setting_of
from python_backends.cluster.cluster import Cluster
from python_backends.cluster.router import Router
from python_backends.instance.loop import Instance, Parts
from python_backends.moving.copier import Copier
from python_backends.moving.move import MoveReason
from python_backends.moving.moves import Moves
from python_backends.moving.wire import DroppedFrames, Frame, Payload
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load
from python_backends.nouns.messages import Failed, Hello
from python_backends.nouns.moves import Ack, Blocks, Last, Nak
from python_backends.nouns.order import Answer, next_answer
from python_backends.nouns.request import Feedback, Finish, ModelLimits, Request
from python_backends.nouns.step import Evicted, HiddenStates, PromptLogProbs, Started, Tokens
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.state.sequence import Status
from python_backends.settings import (
    ClusterSettings,
    EngineSettings,
    ModelSettings,
    SchedulingSettings,
    Settings,
    StreamSettings,
)
from python_backends.streams.log_probs import PromptScores
from python_backends.streams.table import FAILED_INSIDE, StreamTable
from python_backends.watching.metrics import Metrics
from python_backends.wires.sessions import InstanceLost, InstanceMove, InstanceReady, NewSession
from tests.support.scheduling import RULES, VOCAB, request, write_vocabulary
from tests.support.toy_answers import toy_answer
from tests.support.toy_engine import TOY, ToyEngine, toy_log_probs

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
    """An instance with its loop, and its copier. It is the link of its loop, too."""

    model: Path

    def __init__(
        self, network: Network, number: int, rules: str, depth: int, slots: int, blocks: int
    ) -> None:
        self.network, self.number = network, number
        engine = EngineSettings(kind=TOY, slots=slots, kv_blocks=blocks, block_tokens=SIZE)
        settings = ModelSettings(str(Host.model), max_model_tokens=MOST_TOKENS + 1)
        self.engine = ToyEngine(Settings(model=settings, engine=engine))
        policy, reserve = RULES[rules]
        clock = lambda: network.now_s  # noqa: E731
        self.scheduler = SlotScheduler(
            self.engine.limits, 16, SchedulingSettings(policy), reserve, clock=clock
        )
        self.copier = Copier(BlocksWire(network, f"blocks-{number}"), self.engine, 1.0, clock, clock)  # type: ignore[arg-type]
        self.moves = Moves(self.scheduler, self.copier, depth - 1, clock)
        parts = Parts(self.moves)
        self.loop = Instance(self.scheduler, self.engine, self, lambda _: None, depth - 1, parts)
        self.loop._heartbeat.is_due = lambda _: True  # in each turn  # type: ignore[method-assign]
        self.session = -1

    @property
    def name(self) -> str:
        return f"instance-{self.number}"

    def publish(self, messages: Iterable[Any]) -> None:
        self.network.put(self.name, FRONT, (self.session, list(messages)))

    def receive(self, wait_s: float = 0.0) -> list[Any]:
        received: list[Any] = []
        for _, (session, messages) in self.network.take(self.name):
            if session != self.session:
                self.session = session
                received.append(NewSession())
                self.publish([Hello(self.engine.limits, "", f"blocks-{self.number}", self.engine.kv_format)])
            received += messages
        return received

    def turn(self) -> None:
        self.loop.turn()
        self.scheduler.check_integrity()

    def copy(self) -> None:
        """A turn of the copier's thread."""
        self.copier._turn()


class Front:
    """The scheduler model's streams, router and moves, and a detokenizer that confirms at once."""

    def __init__(self, network: Network, num_instances: int, policy: str, move: str, **rhythm: Any) -> None:
        self.network = network
        chosen = ClusterSettings(instances=num_instances, policy=setting_of(policy), move=move)
        self.metrics = Metrics()
        self.router = Router(chosen)
        self.router.policy = replace(
            self.router.policy, **{"balance_every_s": STEP_S, "max_moves": 1, **rhythm}
        )
        clock = lambda: network.now_s  # noqa: E731
        streams = StreamSettings()
        self.table = StreamTable(
            streams, lambda: int(network.now_s * 1e9), lambda words: 4, self.metrics, self.router
        )
        self.cluster = Cluster(chosen, self.router, self.table, self.metrics, clock)
        self.sessions = dict.fromkeys(range(num_instances), 0)
        self.known: set[int] = set()  # instances with a session
        self.limits: dict[int, ModelLimits] = {}  # of each, as it said last
        self.answers: dict[int, tuple[list[int], Finish]] = {}  # of streams that have ended
        self.prompts: dict[int, PromptScores | None] = {}  # of the same
        self.read: list[tuple[int, int]] = []  # hidden states: request, tokens of its answer
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
            self.limits[number] = message.limits
            self.known.add(number)
            self.router.ready(number, message.limits)
            self.table.instance_ready(number)
            self.cluster.ready(InstanceReady(number, message))
        elif take := self.takes.get(type(message)):
            take(message)
        elif isinstance(message, Load):
            self.router.heard(InstanceLoad(number, self.limits[number], message))
        elif isinstance(message, HiddenStates):
            self.read += zip(message.request_ids.tolist(), message.num_written.tolist(), strict=True)
        else:
            self.cluster.heard(InstanceMove(number, message))

    @property
    def takes(self) -> dict[type, Callable[[Any], None]]:
        """What the stream table alone is told."""
        table = self.table
        return {
            Started: table.started,
            Evicted: table.evicted,
            PromptLogProbs: table.prompt_log_probs,
            Tokens: table.tokens,
            Failed: table.failed,
        }

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
            self.prompts[stream.request_id] = stream.prompt_scores
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
        slots: int = SLOTS,
        blocks: int = BLOCKS,
        move: str = "blocks",
        **rhythm: Any,
    ) -> None:
        """`rhythm`: `balance_every_s` and `max_moves` of the policy."""
        self.network = Network()
        self.of_hosts = rules, depth, slots, blocks
        self.hosts = [Host(self.network, number, *self.of_hosts) for number in range(num_instances)]
        self.front = Front(self.network, num_instances, policy, move, **rhythm)
        self.asked: dict[int, Request] = {}
        self.turn()
        self.turn()

    def ask(self, ask: Request) -> None:
        """Every other one wants log-probabilities of its prompt."""
        ask = ask.changed(wants_prompt_log_probs=ask.request_id % 2 == 1)
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
        self.hosts[number] = Host(self.network, number, *self.of_hosts)

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
        assert not len(self.front.cluster._coordinator)

    def check(self, number: int) -> None:
        ask = self.asked[number]
        tokens, finish = self.front.answers[number]
        whole = toy_answer(ask.prompt, ask.sampling, VOCAB)
        if finish is Finish.CANCELLED:
            assert tokens == whole[: len(tokens)]
        else:
            assert tokens == whole
        scores = self.front.prompts[number]
        assert (scores is not None) == ask.wants_prompt_log_probs
        if scores is not None and tokens:
            found = scores.whole()
            assert found is not None
            expected = [toy_log_probs(token, 0, VOCAB).chosen[0] for token in ask.prompt.tolist()[1:]]
            assert found.chosen.tolist() == expected

    def check_all(self) -> None:
        self.finish()
        assert self.front.answers.keys() == self.asked.keys()
        for number in self.asked:
            self.check(number)

    def move(self, request_id: int, destination: int) -> None:
        stream = self.front.table.find(request_id)
        assert stream is not None
        assert self.front.cluster._coordinator.can_leave(stream)
        self.front.cluster._coordinator.start(stream, destination, MoveReason.SHUFFLE)

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


def orders_to_move(world: World, *orders: tuple[int, int]) -> list[Answer]:
    """Orders it as operators do, all at once: a request and where it is to go. Returns the last answers."""
    carried_out = {order: world.front.cluster.move(*order) for order in orders}
    answers: dict[tuple[int, int], Answer] = {}

    def are_answered() -> bool:
        for order, progress in carried_out.items():
            if "missing" in answers.get(order, {"missing": ""}):
                answers[order] = next_answer(progress)
        return not any("missing" in answer for answer in answers.values())

    world.until(are_answered)
    return [answers[order] for order in orders]


def order_to_move(world: World, request_id: int, instance: int) -> Answer:
    return orders_to_move(world, (request_id, instance))[0]


def check_seats(world: World) -> None:
    """When the scheduler model has heard everything, it knows who has a slot of those that instances have."""
    for stream in world.front.table.streams:
        if not stream.submitted or stream.finish is not Finish.RUNNING:
            continue
        sequence = world.hosts[stream.instance].scheduler.find(stream.request_id)
        if sequence is not None and sequence.request_epoch == stream.request_epoch:
            assert stream.seated == (sequence.status is Status.RUNNING)
