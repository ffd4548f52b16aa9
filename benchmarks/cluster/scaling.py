"""`cluster.py --scaling`: how many instances run, and how long the first token takes, when their number
follows the load.

Every policy serves the same requests with several thresholds of `cluster.scale_up_tokens`; an instance is
ready a while after the decision to start it, and costs from that decision on. The first half of the requests
does not count, because the number at the start is a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np
from tqdm import tqdm

from benchmarks.cluster.hosts import Machine
from benchmarks.cluster.requests import Load, draw_work
from benchmarks.cluster.runs import Capacity, Simulation
from benchmarks.policies import setting_of
from benchmarks.results_file import table
from python_backends.settings import ClusterSettings

POLICIES = ("infaas", "llumnix", "ours")
THRESHOLDS = ((60, 240), (160, 480), (320, 960), (600, 1800))  # scale_up_tokens, scale_down_tokens
LOAD, CV, SEEDS = 0.4, 2.0, 2  # of the capacity of all instances
NUM_REQUESTS = 1000


@dataclass(frozen=True, slots=True)
class Point:
    policy: str
    scale_up_tokens: int
    scale_down_tokens: int
    seed: int
    load: Load
    count: int
    most_instances: int
    machine: Machine


@dataclass(frozen=True, slots=True)
class Row:
    policy: str
    scale_up_tokens: int
    scale_down_tokens: int
    mean_instances: float
    instance_seconds: float
    mean_ttft_s: float
    p99_ttft_s: float
    evictions: int


def measure(
    machine: Machine, capacity: Capacity, mean_tokens: float, most_instances: int, jobs: int, is_quick: bool
) -> list[Row]:
    """Prints a table with a row for each policy and threshold, and returns it."""
    load = Load(LOAD * capacity.rate, CV, mean_tokens, round(LOAD * capacity.num_running))
    count, seeds = (100, 1) if is_quick else (NUM_REQUESTS, SEEDS)
    thresholds = THRESHOLDS[2:3] if is_quick else THRESHOLDS
    points = [
        Point(policy, *each, seed, load, count, most_instances, machine)
        for policy in POLICIES
        for each in thresholds
        for seed in range(1, seeds + 1)
    ]
    rows = []
    with ProcessPoolExecutor(jobs) as pool:
        made = list(tqdm(pool.map(_run, points), "scaling", len(points)))
    for first in range(0, len(points), seeds):
        rows.append(_row(points[first], made[first : first + seeds]))
    print(table([asdict(row) for row in rows]))
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    ttft_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    mean_instances: float
    instance_seconds: float
    evictions: int


def _run(point: Point) -> _Counted:
    settings = ClusterSettings(
        instances=1,
        policy=setting_of(point.policy),
        max_instances=point.most_instances,
        scale_up_tokens=point.scale_up_tokens,
        scale_down_tokens=point.scale_down_tokens,
    )
    work = draw_work(point.load, point.count, point.seed)
    first = max(1, round((LOAD + 0.3) * point.most_instances))
    simulation = Simulation(point.machine, settings, work, first)
    served = simulation.run()
    half = point.count // 2
    first_s, last_s = work.due_s[work.num_before + half], work.due_s[-1]
    mean = simulation.running.mean(float(first_s), float(last_s))
    instance_seconds = mean * float(last_s - first_s)
    return _Counted(served.ttft_s[half:], mean, instance_seconds, served.num_evictions)


def _row(point: Point, runs: Sequence[_Counted]) -> Row:
    ttft_s = np.concatenate([each.ttft_s for each in runs])
    return Row(
        point.policy,
        point.scale_up_tokens,
        point.scale_down_tokens,
        round(float(np.mean([each.mean_instances for each in runs])), 2),
        round(sum(each.instance_seconds for each in runs), 1),
        round(float(ttft_s.mean()), 3),
        round(float(np.percentile(ttft_s, 99)), 3),
        sum(each.evictions for each in runs),
    )


def instance_seconds(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By policy and scale_up_tokens."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row.policy, {})[f"{row.scale_up_tokens}"] = row.instance_seconds
    return found
