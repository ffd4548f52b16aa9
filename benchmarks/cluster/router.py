"""`cluster.py --router`: what the router takes for each request, and the balancer for each look at all
instances, for 16 to 1,024 instances.

The instances are loads that were drawn once; nothing runs. A dispatch is the choice of an instance and its
note in the router, with a prompt whose beginning no instance has seen. A round is one look of the balancer at
all requests: which of them move is found and moves begin, but no message is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from tqdm import tqdm

from benchmarks.policies import setting_of
from benchmarks.results_file import table
from python_backends.cluster.balancer import Balancer
from python_backends.cluster.router import Router
from python_backends.moving.coordinator import Coordinator
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load
from python_backends.nouns.request import ModelLimits, Request, Sampling
from python_backends.settings import ClusterSettings
from python_backends.streams.stream import Stream
from python_backends.streams.submissions import Submissions
from python_backends.watching.metrics import Metrics

POLICIES = ("infaas", "llumnix", "ours")
INSTANCES = (16, 64, 256, 1024)
NUM_DISPATCHES, NUM_ROUNDS = 400, 20
SLOTS, BLOCKS, BLOCK_TOKENS = 64, 425, 32
RUNNING = 8  # requests of an instance, on average
PROMPT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Row:
    policy: str
    instances: int
    requests: int  # that run or wait
    dispatch_us: float  # median
    dispatch_p99_us: float
    heartbeat_us: float  # median
    round_ms: float  # median
    round_max_ms: float


def measure(is_quick: bool) -> list[Row]:
    """Prints a table with a row for each policy and number of instances, and returns it."""
    numbers = INSTANCES[:1] if is_quick else INSTANCES
    cases = [(policy, number) for policy in POLICIES for number in numbers]
    rows = [_row(*case, 0.1 if is_quick else 1.0) for case in tqdm(cases, "router")]
    print(table([asdict(row) for row in rows]))
    return rows


class _Front:
    """Router, balancer and requests of a scheduler model with `count` instances."""

    def __init__(self, policy: str, count: int) -> None:
        settings = ClusterSettings(instances=1, policy=setting_of(policy))
        random, limits = np.random.default_rng(0), ModelLimits(8192, 1 << 30, SLOTS, BLOCKS, BLOCK_TOKENS)
        self.instances = list(range(count))
        self.router = Router(settings)
        self.submissions = Submissions(self.router)
        metrics = Metrics()
        coordinator = Coordinator(self.submissions, metrics, self.router.step_s, time.monotonic)
        self.balancer = Balancer(settings, self.router, coordinator, self.submissions, metrics)
        self.loads: list[InstanceLoad] = []
        self.streams: list[Stream] = []
        for instance in self.instances:
            self.router.ready(instance, limits)
            self.submissions.instance_ready(instance)
            self._fill(instance, limits, int(random.integers(0, 2 * RUNNING + 1)), random)
        self.hear()

    def hear(self) -> None:
        """A heartbeat of each instance."""
        for load in self.loads:
            self.router.heard(load)

    def _fill(self, instance: int, limits: ModelLimits, count: int, random: np.random.Generator) -> None:
        used, num_waiting = int(random.integers(count, BLOCKS)), int(random.integers(0, 2))
        said = Load(
            num_running=count,
            num_used_blocks=used,
            future_blocks=int(random.integers(used, BLOCKS + 50)),
            num_waiting=num_waiting,
            waiting_blocks=8 * num_waiting,
            head_blocks=8 * num_waiting,
            last_submit=1 << 60,
        )
        self.loads.append(InstanceLoad(instance, limits, said))
        for place in range(count + num_waiting):
            stream = new_stream(len(self.streams))
            stream.instance, stream.seated = instance, place < count
            stream.tokens.extend([1] * int(random.integers(1, 400)) if stream.seated else [])
            self.streams.append(stream)


def new_stream(number: int) -> Stream:
    prompt = np.full(PROMPT_TOKENS, number, np.int32)
    return Stream(Request(number, prompt, Sampling(max_tokens=1000)), None, 4, 0)


def _row(policy: str, count: int, share: float) -> Row:
    front = _Front(policy, count)
    router = front.router

    def dispatch(stream: Stream) -> None:
        instance = router.choose(stream, front.instances)
        if instance is not None:
            router.submitted(stream, instance, 1 << 61)

    new = [new_stream(-1 - number) for number in range(round(NUM_DISPATCHES * share))]
    dispatch_s = _seconds(partial(dispatch, stream) for stream in new)
    heartbeat_s = _seconds(partial(router.heard, load) for load in front.loads)
    round_s = _seconds(
        partial(front.balancer.balance, front.streams, float(number))
        for number in range(round(NUM_ROUNDS * share))
    )
    return Row(
        policy,
        count,
        len(front.streams),
        round(float(np.median(dispatch_s)) * 1e6, 1),
        round(float(np.percentile(dispatch_s, 99)) * 1e6, 1),
        round(float(np.median(heartbeat_s)) * 1e6, 1),
        round(float(np.median(round_s)) * 1e3, 2),
        round(float(np.max(round_s)) * 1e3, 2),
    )


def _seconds(actions: Iterable[Callable[[], object]]) -> list[float]:
    """What each of them takes."""
    taken = []
    for action in actions:
        began_s = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began_s)
    return taken
