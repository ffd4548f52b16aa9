"""Compares the cluster policies by a virtual clock: which instance gets a request, and which requests move.

    python -m benchmarks.cluster --json benchmarks/results/cluster.json --plot benchmarks/results/cluster.png

Router, balancer, moves and stream table of the scheduler model, and slot scheduler and moves of each
instance, are the server's own. The engine and the wire between instances are simulated. A step takes a
constant time, and a time for each decode row, KV token and prefill token: --step-time. The default is about a
model of 7 billion weights on a GPU with 600 GB/s, which is an assumption and was not measured. Blocks are
copied at --bandwidth; a request continues to decode meanwhile, and stops for its last block. Messages take no
time.

Lengths of prompts and of answers have a power law from 8 to 6,144 tokens with the mean --tokens. The gaps
between arrivals have a Gamma distribution. Capacity is the throughput of the cluster under `llumnix` when
requests always wait. At the start about as many requests run as at that load; they don't count. Every policy
gets the same requests at the same times. A run ends when each request has its first token. The time per token
includes waits after an eviction; it is that of answers with at least 8 tokens at the end of the run.

Admission `as_needed` is vLLM's: first come first served, blocks are taken when tokens need them, and the
youngest request is evicted when no block is free. Other names are those of scheduling.policy; `ours` gets
predictions that are wrong by a factor whose logarithm has a standard deviation of 0.5. In addition to the
curves over load, there are cases with a tenth of the requests at high priority, with other arrivals and
lengths, and with a server's default admission. Without priorities, llumnix_base is the same as llumnix, so it
is not measured there.

`--scaling` shows how many instances run, and when first tokens come, if their number follows the load.
`--check` compares the simulation with four real instances, whose engine is paced, behind Triton.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.cluster import router, scaling
from benchmarks.cluster.check import check
from benchmarks.cluster.hosts import AS_NEEDED, Machine
from benchmarks.cluster.kept import file_of, kept, kept_capacity
from benchmarks.cluster.report import Row, by_load, compare, draw, row_of
from benchmarks.cluster.requests import Load, draw_work
from benchmarks.cluster.runs import Capacity, Served, Simulation, measure_capacity
from benchmarks.common.command_line import command_line
from benchmarks.policies import CLUSTER, SCHEDULING, setting_of
from benchmarks.results_file import COMMIT, table, write_result
from python_backends.scheduling.step_time import FEATURES
from python_backends.settings import ClusterSettings

BASE, SAME_AS_BASE = "llumnix_base", "llumnix"  # where all priorities are the same
HIGH_SHARE = 0.1
STEP_S = (0.0225, 0.00005, 0.0000009, 0.00023, 0.0)
KIB_PER_TOKEN = 512.0


@dataclass(frozen=True, slots=True)
class Case:
    """A load for all policies."""

    load: float  # of capacity
    cv: float
    mean_tokens: float
    high_share: float = 0.0
    admission: str = AS_NEEDED

    @property
    def name(self) -> str:
        high = f", {self.high_share:.0%} high priority" if self.high_share else ""
        return f"load {self.load:g}, CV {self.cv:g}, {self.mean_tokens:g} tokens, {self.admission}{high}"


@dataclass(frozen=True, slots=True)
class Overload:
    """What the capacity is measured with."""

    machine: Machine
    mean_tokens: float
    instances: int


@dataclass(frozen=True, slots=True)
class Point:
    """One run."""

    case: Case
    policy: str
    seed: int
    count: int
    instances: int
    machine: Machine
    capacity: Capacity


def run_or_read(point: Point, runs: Path | None, commit: str) -> tuple[Served, str]:
    """The results, and the commit of the code that made them. `runs`: the folder of runs that are kept."""
    return kept(file_of(runs, point, "npz"), commit, lambda: run(point))


def run(point: Point) -> Served:
    case, capacity = point.case, point.capacity
    load = Load(
        rate=case.load * capacity.rate,
        cv=case.cv,
        mean_tokens=case.mean_tokens,
        num_before=round(min(case.load, 1.0) * capacity.num_running),
        high_share=case.high_share,
    )
    settings = ClusterSettings(instances=point.instances, policy=setting_of(point.policy))
    return Simulation(point.machine, settings, draw_work(load, point.count, point.seed)).run()


class Bench:
    """The measurement with the command line's arguments."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.capacities: dict[tuple[float, str], Capacity] = {}
        self.commits: set[str] = set()  # whose code made the runs
        self.served: dict[str, dict[str, list[Served]]] = {}  # by case and policy

    def machine(self, admission: str) -> Machine:
        asked = self.asked
        return Machine(
            slots=asked.slots,
            blocks=asked.kv_tokens // asked.block_tokens,
            block_tokens=asked.block_tokens,
            token_budget=asked.token_budget,
            step_s=tuple(asked.step_time),
            block_bytes=asked.kib_per_token * 1024 * asked.block_tokens,
            bytes_per_s=asked.bandwidth * 1e9,
            admission=admission,
        )

    def grid(self) -> list[Case]:
        asked = self.asked
        first = Case(0.0, 0.0, asked.tokens, admission=asked.admission)
        cells = asked.cells or [(load, cv) for cv in asked.cvs for load in asked.loads]
        return [replace(first, load=load, cv=cv) for load, cv in cells]

    def others(self) -> list[Case]:
        """Returns the cases that are not in the curves over load; none with --quick or --curves."""
        asked = self.asked
        if asked.quick or asked.curves:
            return []
        bursts = Case(0.9, 4.0, asked.tokens, admission=asked.admission)
        mixed = replace(bursts, cv=8.0, mean_tokens=128.0, high_share=HIGH_SHARE)
        high = [replace(mixed, load=load) for load in (0.7, 0.9, 1.0)]
        arrivals = [replace(bursts, cv=2.0)]
        lengths = [replace(bursts, mean_tokens=mean) for mean in (128.0, 512.0)]
        return [*high, *arrivals, *lengths, replace(bursts, admission=asked.other_admission)]

    def points(self, cases: list[Case]) -> list[Point]:
        asked = self.asked
        return [
            Point(
                case,
                policy,
                seed,
                asked.requests,
                asked.instances,
                self.machine(case.admission),
                self.capacities[case.mean_tokens, case.admission],
            )
            for case in cases
            for policy in asked.policies
            if case.high_share or policy != BASE or SAME_AS_BASE not in asked.policies
            for seed in range(1, asked.seeds + 1)
        ]

    def measure_capacities(self, cases: list[Case]) -> None:
        settings = ClusterSettings(instances=self.asked.instances, policy="llumnix")
        kinds = dict.fromkeys((case.mean_tokens, case.admission) for case in cases)
        for mean, admission in tqdm(kinds, desc="capacity"):
            machine = self.machine(admission)
            path = file_of(self.asked.runs, Overload(machine, mean, self.asked.instances), "json")
            measured = partial(measure_capacity, machine, settings, mean)
            self.capacities[mean, admission] = kept_capacity(path, measured)

    def rows(self, cases: list[Case]) -> Iterator[Row]:
        """Yields a row for each case and policy."""
        points = self.points(cases)
        with ProcessPoolExecutor(self.asked.jobs) as pool:
            found = pool.map(partial(run_or_read, runs=self.asked.runs, commit=COMMIT["commit"]), points)
            for point, (served, commit) in zip(points, tqdm(found, "runs", len(points)), strict=True):
                self.commits.add(commit)
                runs = self.served.setdefault(point.case.name, {}).setdefault(point.policy, [])
                runs.append(served)
                if point.seed == self.asked.seeds:
                    row = row_of(point.policy, point.case.name, runs)
                    tqdm.write(f"{row.case}: {row.policy}: P99 first token {row.p99_ttft_s} s")
                    yield row


def arguments() -> argparse.Namespace:
    parser = command_line(
        __doc__,
        quick="few requests at one load: does it run at all?",
        plot="P99 time to first token over load",
    )
    numbers = lambda text: [float(each) for each in text.split(",")]  # noqa: E731
    pairs = lambda text: [tuple(map(float, each.split(":"))) for each in text.split(",")]  # noqa: E731
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(CLUSTER))
    parser.add_argument(
        "--loads", type=numbers, default=[0.5, 0.7, 0.8, 0.9, 1.0, 1.1], help="of the measured capacity"
    )
    parser.add_argument(
        "--cvs",
        type=numbers,
        default=[1.0, 4.0, 8.0],
        help="coefficients of variation of the gaps between arrivals",
    )
    parser.add_argument("--requests", type=int, default=400, help="in one run")
    parser.add_argument("--seeds", type=int, default=5, help="number of runs, each with different requests")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--instances", type=int, default=16)
    parser.add_argument("--tokens", type=float, default=256.0, help="mean of prompts, and of answers")
    parser.add_argument("--admission", default=AS_NEEDED, choices=(AS_NEEDED, *SCHEDULING))
    parser.add_argument("--other-admission", default="ours", choices=SCHEDULING, help="of the last case")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--kv-tokens", type=int, default=13_600, help="of one instance")
    parser.add_argument("--block-tokens", type=int, default=32)
    parser.add_argument("--token-budget", type=int, default=512, help="tokens of a step")
    parser.add_argument(
        "--step-time", type=numbers, default=list(STEP_S), metavar="S,S,S,S,S", help=f"{', '.join(FEATURES)}"
    )
    parser.add_argument("--kib-per-token", type=float, default=KIB_PER_TOKEN, help="of KV blocks")
    parser.add_argument(
        "--bandwidth", type=float, default=2.0, help="GB/s that an instance sends to all others together"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare the simulation with four real instances, and end"
    )
    parser.add_argument(
        "--scaling", action="store_true", help="only: the number of instances follows the load"
    )
    parser.add_argument(
        "--router", action="store_true", help="only: the time of the router for up to 1,024 instances"
    )
    parser.add_argument(
        "--cells",
        type=pairs,
        metavar="LOAD:CV,...",
        help="instead of --loads and --cvs",
    )
    parser.add_argument("--curves", action="store_true", help="only the curves over load")
    parser.add_argument(
        "--runs", type=Path, help="folder in which each run is kept: one that is there is not repeated"
    )
    asked = parser.parse_args()
    if unknown := sorted({*asked.policies} - {*CLUSTER}):
        parser.error(f"--policies: {', '.join(unknown)}: must be of {', '.join(CLUSTER)}")
    if asked.quick:
        asked.requests, asked.seeds, asked.instances = 100, 1, min(asked.instances, 4)
        asked.loads, asked.cvs = asked.loads[-1:], asked.cvs[:1]
    return asked


def _check(asked: argparse.Namespace) -> None:
    rows = check(40, 1, ("infaas",)) if asked.quick else check(400, 3)
    if asked.json:
        write_result(asked.json, {"rows": [asdict(row) for row in rows]})


def _router(asked: argparse.Namespace) -> None:
    rows = router.measure(asked.quick)
    if asked.json:
        write_result(asked.json, {"rows": [asdict(row) for row in rows]})


def _scaling(asked: argparse.Namespace, bench: Bench) -> None:
    case = Case(0.0, 0.0, asked.tokens, admission=asked.admission)
    bench.measure_capacities([case])
    capacity = bench.capacities[asked.tokens, asked.admission]
    machine = bench.machine(asked.admission)
    rows = scaling.measure(machine, capacity, asked.tokens, asked.instances, asked.jobs, asked.quick)
    if asked.json:
        seconds = scaling.instance_seconds(rows)
        write_result(asked.json, {"instance_seconds": seconds, "rows": [asdict(row) for row in rows]})


def main() -> None:
    asked = arguments()
    if asked.check:
        _check(asked)
        return
    if asked.router:
        _router(asked)
        return
    bench = Bench(asked)
    if asked.scaling:
        _scaling(asked, bench)
        return
    grid, others = bench.grid(), bench.others()
    bench.measure_capacities([*grid, *others])
    rows = list(bench.rows([*grid, *others]))
    told: dict[str, Any] = {
        "capacity_req_s": {
            f"{mean:g} tokens, {admission}": round(capacity.rate, 2)
            for (mean, admission), capacity in bench.capacities.items()
        },
        "simulated_machine": asdict(bench.machine(asked.admission)),
        "step_time_s": dict(zip(FEATURES, asked.step_time, strict=True)),
        "commits_of_runs": sorted(bench.commits),
        "requests": asked.requests,
        "seeds": asked.seeds,
        "instances": asked.instances,
    }
    keys = [(case.load, case.cv, case.name) for case in grid]
    compared = [each for case, runs in bench.served.items() for each in compare(case, runs)]
    if asked.json:
        more = {"compared": [asdict(each) for each in compared], "rows": [asdict(row) for row in rows]}
        write_result(asked.json, told | by_load(rows, keys) | more)
    if asked.plot:
        draw(asked.plot, rows, keys)
    print(json.dumps(told))
    for each in compared:
        print(
            f"{each.case}: {each.policy} compared with {each.other}: P99 first token {each.p99_ttft} times"
            f" better, in {each.wins} runs; {each.evictions} times the evictions"
        )
    print(table([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
