"""Compares the policies of continuous batching on real prompts and a published model's answers, by a virtual
clock.

    python -m benchmarks.scheduling.real --json benchmarks/results/scheduling_real.json

Lengths and cross-validated predictions (of prompts about topics that were not learned from) are files beside
the prompts. `ours`, `hrrn`, `sjf`: predicted by words until a prompt has been computed, then by the model's
state. `ours_…`: `ours` with other predictions. `oracle`: with the true lengths. `tie`: shortest first, means
inflated by their tail (arXiv 2604.00499). `boost`: without predictions, arrivals shifted by a boost (arXiv
2606.18431). Good: first token within --ttft, then --tpot a token on average. Each row is the median of
--rounds draws, and has the goodput of each.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from functools import partial
from itertools import product

from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.policies import setting_of
from benchmarks.results_file import table, write_result
from benchmarks.scheduling.__main__ import Row, capacity, median, open_work, row_of
from benchmarks.scheduling.real_pool import MAX_TOKENS, read_real_pool
from benchmarks.scheduling.requests import Source
from benchmarks.scheduling.runs import Machine, Served, Work, simulate
from python_backends.nouns.request import ModelLimits
from python_backends.scheduling.step_time import FEATURES
from python_backends.settings import SchedulingSettings

POLICIES = {  # by name in the table: the policy, and what is predicted
    "fcfs": ("fcfs", Source.NONE),
    "past_future": ("past_future", Source.NONE),
    "boost": ("boost", Source.NONE),
    "ours_none": ("ours", Source.NONE),
    "ours_history": ("ours", Source.HISTORY),
    "ours_forest": ("ours", Source.FOREST),
    "ours_words": ("ours", Source.WORDS),
    "ours": ("ours", Source.STATE),
    "hrrn": ("hrrn", Source.STATE),
    "sjf": ("sjf", Source.STATE),
    "tie": ("sjf", Source.TAIL),
    "oracle": ("ours", Source.TRUTH),
}
BLOCK_TOKENS = 32
STEP_TIME = (0.03, 0.002, 2e-6, 0.0015, 0.0)  # SmolLM2-135M in bfloat16 on two cores, roughly
MEMORY = {"scarce": 7, "ample": 56}  # KV blocks a slot


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__, quick="a few seconds of arrivals and three policies")
    numbers = lambda text: [float(each) for each in text.split(",")]  # noqa: E731
    parser.add_argument("--loads", type=numbers, default=[0.9, 1.2], help="of capacity")
    parser.add_argument("--cvs", type=numbers, default=[1.0, 4.0], help="of the gaps between arrivals")
    parser.add_argument("--memory", type=lambda text: text.split(","), default=list(MEMORY))
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(POLICIES))
    parser.add_argument("--seconds", type=float, default=600.0, help="time for which requests arrive")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--ttft", type=float, default=2.0, help="seconds")
    parser.add_argument("--tpot", type=float, default=0.15, help="seconds")
    parser.add_argument(
        "--step-time", type=numbers, default=STEP_TIME, metavar="S,S,S,S,S", help=", ".join(FEATURES)
    )
    asked = parser.parse_args()
    for name, known in (("policies", POLICIES), ("memory", MEMORY)):
        if unknown := sorted({*getattr(asked, name)} - {*known}):
            parser.error(f"--{name}: {', '.join(unknown)}: must be of {', '.join(known)}")
    if asked.quick:
        asked.seconds, asked.rounds, asked.policies = 30.0, 1, ["fcfs", "ours", "oracle"]
    return asked


def main() -> None:
    asked = arguments()
    pool, machine = read_real_pool(), Machine.exact(asked.step_time)
    longest = MAX_TOKENS + int(pool.num_input_tokens.max())

    def run(name: str, work: Work, blocks: int) -> Served:
        policy, source = POLICIES[name]
        settings = SchedulingSettings(policy=setting_of(policy), ttft_s=asked.ttft)
        limits = ModelLimits(longest, 1 << 12, asked.slots, blocks, BLOCK_TOKENS)
        return simulate(limits, settings, replace(work, source=source), machine)

    rows, most = [], {}
    for memory in asked.memory:
        blocks = max(MEMORY[memory] * asked.slots, -(-longest // BLOCK_TOKENS))
        at = partial(run, blocks=blocks)
        most[memory] = capacity(at, pool, 25 * asked.slots, asked.slots)
        cases = list(product(asked.cvs, asked.loads, asked.policies))
        for cv, load, name in tqdm(cases, desc=f"memory {memory}"):
            drawn: list[Row] = []
            for seed in range(asked.rounds):
                work = open_work(pool, most[memory] * load, cv, asked.seconds, 1 + seed)
                drawn.append(row_of(name, load, cv, at(name, work), asked.ttft, asked.tpot))
            spread = " ".join(f"{row.goodput:.3f}" for row in sorted(drawn, key=lambda row: row.goodput))
            rows.append({"memory": memory} | asdict(median(drawn)) | {"goodput_of_draws": spread})
            tqdm.write(" ".join(map(str, rows[-1].values())))
    if asked.json:
        limits = {"ttft_s": asked.ttft, "tpot_s": asked.tpot, "slots": asked.slots, "blocks_a_slot": MEMORY}
        told = {"capacity_req_s": most, "limits": limits, "step_time_s": list(asked.step_time)}
        write_result(asked.json, told | {"rows": rows})
    print(table(rows))


if __name__ == "__main__":
    main()
