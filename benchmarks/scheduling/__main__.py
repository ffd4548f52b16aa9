r"""Compares the policies of continuous batching while slots and KV blocks are scarce: the bundled model's
eight tasks, loads around capacity, Poisson and bursty arrivals.

    # the real engine
    python -m benchmarks.scheduling --json benchmarks/results/scheduling.json --plot scheduling.png
    # simulated
    python -m benchmarks.scheduling --simulate --slots 256 --seconds 3600 \
        --json benchmarks/results/scheduling_simulated.json
    # simulated compared with real
    python -m benchmarks.scheduling --check

Capacity is the throughput of `ours` when requests always wait. Goodput counts the requests whose first token
arrives within --ttft and whose tokens arrive within --tpot on average. Each policy gets the same requests at
the same times. The forest predicted their lengths before the run, which costs nothing in the run. `ours` runs
three times: with those predictions, as `oracle` with the true lengths, and as `ours_history` with predictions
from recent answers. --simulate runs the slot scheduler itself by a virtual clock, with a model of step time
from a short real run (or --step-time).
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.policies import SCHEDULING, setting_of
from benchmarks.results_file import table, write_result
from benchmarks.scheduling.figures import Figures, Times, figures_of
from benchmarks.scheduling.requests import MAX_TOKENS, Pool, Source, read_pool
from benchmarks.scheduling.runs import TOKEN_BUDGET, Machine, Served, Steps, Work, serve, simulate
from python_backends.instance.build import build
from python_backends.nouns.request import ModelLimits
from python_backends.scheduling.step_time import FEATURES
from python_backends.settings import EngineSettings, ModelSettings, SchedulingSettings, Settings

# sources of predictions of `ours`; other policies have FOREST
SOURCES = {"oracle": Source.TRUTH, "ours_history": Source.HISTORY}
BLOCK_TOKENS = 32  # the only size that layers in C++ take
MAX_MODEL_TOKENS = 704  # the longest prompt and answer of the mix
IN_FLIGHT = 3  # times the slots, so that requests always wait
POOL, QUICK_POOL = 1000, 80  # prompts
NO_TIME = [0.0] * len(FEATURES)  # until it is calibrated
Run = Callable[[str, Work], Served]


@dataclass(frozen=True, slots=True)
class Row(Figures):
    max_passed_over: float  # seconds from the first time that a request was passed over to the last


def row_of(policy: str, load: float, cv: float, served: Served, ttft_s: float, tpot_s: float) -> Row:
    times = Times(served.arrived_s, served.first_s, served.last_s, served.counts)
    figures = figures_of(policy, load, cv, times, served.num_evictions, (ttft_s, tpot_s))
    return Row(**figures, max_passed_over=round(served.passed_over_s, 3))


def median(rows: list[Row]) -> Row:
    """Returns the median of each figure."""
    figures = {
        name: float(np.median([getattr(row, name) for row in rows])) for name in list(asdict(rows[0]))[3:]
    }
    preemptions = int(figures.pop("preemptions"))
    return Row(rows[0].policy, rows[0].load, rows[0].arrivals, preemptions=preemptions, **figures)


def open_work(pool: Pool, rate: float, cv: float, seconds: float, seed: int) -> Work:
    """Returns requests for `seconds`, at random times with coefficient of variation `cv`, with random
    prompts.
    """
    random, shape = np.random.default_rng(seed), 1 / cv**2
    count = max(20, round(rate * seconds))
    due_s = np.cumsum(random.gamma(shape, 1 / (rate * shape), count))
    return Work(pool, due_s * (seconds / due_s[-1]), _places(pool, count, seed))


def closed_work(pool: Pool, count: int, slots: int) -> Work:
    return Work(pool, np.zeros(count), _places(pool, count, seed=0), in_flight=IN_FLIGHT * slots)


def _places(pool: Pool, count: int, seed: int) -> NDArray[np.int64]:
    """Returns random prompts; none occurs twice if there are enough."""
    random = np.random.default_rng(seed)
    places: NDArray[np.int64] = np.concatenate(
        [random.permutation(len(pool)) for _ in range(-(-count // len(pool)))]
    )
    return places[:count]


def capacity(run: Run, pool: Pool, count: int, slots: int) -> float:
    """Returns requests a second while requests always wait: output tokens a second / mean length, because
    short answers end first.
    """
    served = run("ours", closed_work(pool, count, slots))
    begin_s, end_s = float(np.sort(served.first_s)[count // 8]), float(served.arrived_s[-1])
    inside_s = np.minimum(served.last_s, end_s) - np.maximum(served.first_s, begin_s)
    share = np.maximum(inside_s, 0.0) / np.maximum(served.last_s - served.first_s, 1e-9)
    return float((share * served.counts).sum() / (end_s - begin_s) / served.counts.mean())


def _told(policy: str, work: Work) -> Work:
    return replace(work, source=SOURCES.get(policy, Source.FOREST))


class Bench:
    """The engine, the requests and the settings for the command line's arguments."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.pool = read_pool(QUICK_POOL if asked.quick else POOL)
        self.scheduling = SchedulingSettings(ttft_s=asked.ttft)
        model = ModelSettings(dtype="float32", max_model_tokens=MAX_MODEL_TOKENS)
        engine = EngineSettings(
            kind="torch", slots=asked.slots, kv_blocks=asked.blocks, block_tokens=BLOCK_TOKENS
        )
        self.settings = Settings(
            model=model, engine=replace(engine, token_budget=TOKEN_BUDGET), scheduling=self.scheduling
        )
        self.limits = ModelLimits(MAX_MODEL_TOKENS, 1 << 12, asked.slots, asked.blocks, BLOCK_TOKENS)
        self.machine = Machine.exact(
            [float(each) for each in asked.step_time.split(",")] if asked.step_time else NO_TIME
        )
        self._engine: Any = None

    def real(self, policy: str, work: Work, steps: Steps | None = None) -> Served:
        if self._engine is None:
            self._engine = build(self.settings)[1]
        settings = replace(self.settings, scheduling=self._rules(policy))
        return serve(self._engine, settings, _told(policy, work), steps or Steps())

    def simulated(self, policy: str, work: Work, machine: Machine | None = None) -> Served:
        return simulate(self.limits, self._rules(policy), _told(policy, work), machine or self.machine)

    def _rules(self, policy: str) -> SchedulingSettings:
        return replace(self.scheduling, policy="ours" if policy in SOURCES else setting_of(policy))

    def calibrate(self) -> None:
        """Measures step times in a real closed loop for several numbers of requests in flight, so that steps
        have few and many rows.
        """
        steps = Steps()
        for in_flight in tqdm((1, 4, self.asked.slots // 2, 2 * self.asked.slots), desc="calibrating"):
            count = 3 * in_flight + 12
            work = Work(self.pool, np.zeros(count), _places(self.pool, count, seed=0), in_flight=in_flight)
            self.real("ours", work, steps)
        self.machine = steps.machine()

    def tpot_s(self) -> float:
        """Twice the time of a step with all slots."""
        kv_tokens = self.asked.blocks * BLOCK_TOKENS * 0.6
        return self.asked.tpot or round(2 * self.machine.step_time.seconds(self.asked.slots, kv_tokens), 3)

    def rows(self, run: Run, most: float, seed: int = 1) -> Iterator[Row]:
        asked = self.asked
        cases = [(cv, load, policy) for cv in asked.cvs for load in asked.loads for policy in asked.policies]
        for cv, load, policy in tqdm(cases, desc="policies"):
            work = open_work(self.pool, most * load, cv, asked.seconds, seed)
            row = row_of(policy, load, cv, run(policy, work), asked.ttft, self.tpot_s())
            tqdm.write(
                f"load {load}, {row.arrivals}, {policy}: {row.goodput}/s good, mean {row.mean_e2e_s} s, P99"
                f" {row.p99_e2e_s} s"
            )
            yield row


def check(bench: Bench, most: float) -> list[dict[str, Any]]:
    """Returns simulated / real for each figure, the median of three pairs with different arrivals. Simulated
    steps take as long as in the pair's real run, so that other load of the machine affects both.
    """
    machines: deque[Machine] = deque()

    def real(policy: str, work: Work) -> Served:
        served = bench.real(policy, work, steps := Steps())
        machines.append(steps.machine())
        return served

    names = ("goodput", "mean_e2e_s", "mean_ttft_s")
    pairs = []
    for seed in (1, 2, 3):
        measured = list(bench.rows(real, most, seed))
        simulated = list(
            bench.rows(lambda policy, work: bench.simulated(policy, work, machines.popleft()), most, seed)
        )
        pairs.append(list(zip(measured, simulated, strict=True)))
    found = []
    for case in zip(*pairs, strict=True):
        ratios = {name: [getattr(b, name) / max(getattr(a, name), 1e-3) for a, b in case] for name in names}
        row, middle = case[0][0], {name: round(float(np.median(ratio)), 3) for name, ratio in ratios.items()}
        found.append({"policy": row.policy, "load": row.load, "arrivals": row.arrivals, **middle})
    return found


def draw(path: Path, rows: list[Row]) -> None:
    """Draws goodput, mean and P99 response by load, a line for each policy; one row of panels for each kind
    of arrivals.
    """
    from matplotlib import pyplot

    kinds = list(dict.fromkeys(row.arrivals for row in rows))
    figures = (
        ("goodput", "requests/s within limits"),
        ("mean_e2e_s", "mean E2E, s"),
        ("p99_e2e_s", "P99 E2E, s"),
    )
    figure, axes = pyplot.subplots(
        len(kinds), 3, figsize=(13, 3.6 * len(kinds)), layout="constrained", squeeze=False
    )
    for line, kind in zip(axes, kinds, strict=True):
        for axis, (name, label) in zip(line, figures, strict=True):
            for policy in dict.fromkeys(row.policy for row in rows):
                mine = [row for row in rows if row.policy == policy and row.arrivals == kind]
                axis.plot(
                    [row.load for row in mine], [getattr(row, name) for row in mine], "o-", label=policy
                )
            axis.set(xlabel="load / capacity", ylabel=label, yscale="linear" if name == "goodput" else "log")
        line[0].set_title(kind, loc="left")
    axes[0][0].legend()
    figure.savefig(path, dpi=120)


def arguments() -> argparse.Namespace:
    parser = command_line(
        __doc__, quick="a few seconds of each: does it run at all?", plot="a picture of the table"
    )
    numbers = lambda text: [float(each) for each in text.split(",")]  # noqa: E731
    parser.add_argument("--simulate", action="store_true", help="by a virtual clock")
    parser.add_argument(
        "--check", action="store_true", help="real and simulated runs in turn, three pairs: do they agree?"
    )
    parser.add_argument("--policies", type=lambda text: text.split(","), default=[*SCHEDULING, *SOURCES])
    parser.add_argument("--loads", type=numbers, default=[0.5, 0.7, 0.9, 1.0, 1.2, 1.5], help="of capacity")
    parser.add_argument(
        "--cvs",
        type=numbers,
        default=[1.0, 4.0],
        help="coefficients of variation of the gaps between arrivals",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="time for which requests arrive")
    parser.add_argument(
        "--rounds", type=int, default=1, help="the median of this many, each with different arrivals"
    )
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument(
        "--blocks", type=int, default=0, help=f"KV blocks of {BLOCK_TOKENS} tokens; default: 2 a slot"
    )
    parser.add_argument(
        "--ttft", type=float, default=1.0, help="seconds: the limit of goodput, and scheduling.ttft_s"
    )
    parser.add_argument(
        "--tpot",
        type=float,
        default=0.0,
        help="seconds: the limit of goodput; 0: twice a step with all slots",
    )
    parser.add_argument(
        "--step-time", default="", metavar="S,S,S,S,S", help=f"of the simulated engine: {', '.join(FEATURES)}"
    )
    asked = parser.parse_args()
    if unknown := sorted({*asked.policies} - {*SCHEDULING, *SOURCES}):
        parser.error(f"--policies: {', '.join(unknown)}: must be of {', '.join([*SCHEDULING, *SOURCES])}")
    asked.blocks = asked.blocks or max(2 * asked.slots, MAX_MODEL_TOKENS // BLOCK_TOKENS)
    if asked.quick:
        asked.seconds, asked.loads, asked.cvs = min(asked.seconds, 3.0), asked.loads[:1], asked.cvs[:1]
    return asked


def main() -> None:
    asked = arguments()
    bench = Bench(asked)
    if not asked.step_time:
        bench.calibrate()
    run = bench.simulated if asked.simulate else bench.real
    count = (8 if asked.quick else 25) * asked.slots
    most = capacity(run, bench.pool, count, asked.slots)
    medians: list[Row] = []
    if asked.check:
        rows = check(bench, most)
    else:
        rounds = [list(bench.rows(run, most, 1 + number)) for number in range(asked.rounds)]
        medians = [median(list(case)) for case in zip(*rounds, strict=True)]
        rows = [asdict(row) for row in medians]
    told = {
        "capacity_req_s": round(most, 3),
        "limits": {
            "ttft_s": asked.ttft,
            "tpot_s": bench.tpot_s(),
            "max_tokens": MAX_TOKENS,
            "slots": asked.slots,
            "blocks": asked.blocks,
        },
        "step_time_s": dict(zip(FEATURES, bench.machine.step_time.coefficients, strict=True)),
    }
    if asked.json:
        write_result(asked.json, told | {"rows": rows})
    if asked.plot and medians:
        draw(asked.plot, medians)
    print(json.dumps(told))
    print(table(rows))


if __name__ == "__main__":
    main()
