"""Measures what predicting every request costs: tokens a second with predictions and without, in turn.

    python -m benchmarks.real_lengths.cost --json benchmarks/results/real_lengths_cost.json

Two servers of SmolLM2-135M-Instruct through Triton: one predicts each request twice, from its text and from
the model's state, by what was learned from 500 answers (or `--learned DIRECTORY`), the other one predicts
nothing. Real prompts, a closed loop over gRPC; answers have the same number of tokens in both. While one
answers, the other one is idle. In flight: as many as there are slots, so that nothing competes; and 512, so
that 496 wait and are ranked.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.real_lengths.served import (
    LEARNED,
    MAX_TOKENS,
    NEVER_S,
    QUICK_LEARNED,
    QUICK_TOKENS,
    chosen,
    learn_in,
)
from benchmarks.real_prompts.prompts import Prompt, read_prompts
from benchmarks.results_file import table, write_result
from client import AsyncClient
from tests.support.server.serving import Gapless

MODES = {"predicted": True, "not predicted": False}
LOADS = {16: (64, 64), 512: (512, 16)}  # by requests in flight: requests, tokens of each answer
SLOTS = 16


@dataclass(frozen=True, slots=True)
class Row:
    mode: str
    in_flight: int
    tok_s: float  # median of the rounds
    tok_s_of_rounds: str
    of_not_predicted: float  # median of the rounds' ratios
    processes: int
    memory_mib: float  # proportional, of all processes of the server


def seconds(served: Gapless, prompts: Sequence[Prompt], in_flight: int, tokens: int) -> float:
    async def ask() -> float:
        clock, waiting = asyncio.get_running_loop().time, iter(prompts)
        begin_s = clock()

        async def one_by_one(client: AsyncClient) -> None:
            for prompt in waiting:
                await client.generate(
                    list(prompt.messages), max_tokens=tokens, min_tokens=tokens, temperature=0.0
                )

        async with AsyncClient(f"127.0.0.1:{served.grpc_port}") as client, asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(one_by_one(client))
        return clock() - begin_s

    return asyncio.run(ask())


def measure(
    learned: Path, prompts: Sequence[Prompt], loads: Sequence[int], rounds: int, quick: bool
) -> Iterator[Row]:
    with ExitStack() as stack:
        servers = {}
        for mode, enabled in MODES.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="learned-"))
            shutil.copytree(learned, folder, dirs_exist_ok=True)
            settings = {
                "model.directory": "auto",
                "engine.slots": SLOTS,
                "prediction.enabled": enabled,
                "prediction.directory": folder,
                "prediction.relearn_s": NEVER_S,
            }
            servers[mode] = stack.enter_context(Gapless(**settings))
        for in_flight in loads:
            count, tokens = LOADS[in_flight]
            count, tokens = (count // 8, 4) if quick else (count, tokens)
            rates: dict[str, list[float]] = {mode: [] for mode in MODES}
            for number in tqdm(range(-1, rounds), desc=f"{in_flight} in flight"):
                begin = (number + 1) * count
                some = [prompts[(begin + place) % len(prompts)] for place in range(count)]
                for mode in list(MODES)[:: 1 if number % 2 else -1]:
                    rate = count * tokens / seconds(servers[mode], some, in_flight, tokens)
                    rates[mode] += [rate] * (number >= 0)
                    tqdm.write(f"{mode}, {in_flight} in flight: {rate:.0f} tokens/s")
            for mode, mine in rates.items():
                ratios = [one / other for one, other in zip(mine, rates["not predicted"], strict=True)]
                yield Row(
                    mode,
                    in_flight,
                    round(float(np.median(mine)), 1),
                    " ".join(f"{rate:.0f}" for rate in mine),
                    round(float(np.median(ratios)), 3),
                    len(servers[mode].processes()) + 1,
                    memory_mib(servers[mode]),
                )


def memory_mib(served: Gapless) -> float:
    processes = [psutil.Process(served.process.pid), *served.processes()]
    return round(sum(process.memory_full_info().pss for process in processes) / 2**20, 1)


def main() -> None:
    parser = command_line(__doc__, f"{QUICK_LEARNED} answers learned, an eighth of the prompts, one round")
    parser.add_argument(
        "--learned", type=Path, help="what a server of the same model has learned; not changed"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-flight", type=int, choices=LOADS, action="append", help="default: all")
    asked = parser.parse_args()
    prompts = chosen(read_prompts())
    with tempfile.TemporaryDirectory(prefix="learned-") as folder:
        if not (learned := asked.learned):
            learned = Path(folder)
            count, most = (QUICK_LEARNED, QUICK_TOKENS) if asked.quick else (LEARNED, MAX_TOKENS)
            learn_in(learned, prompts["learned"][:count], most)
        others = prompts["new topics"] + prompts["new kinds"]
        rounds, loads = 1 if asked.quick else asked.rounds, asked.in_flight or list(LOADS)
        told = [asdict(row) for row in measure(learned, others, loads, rounds, asked.quick)]
    if asked.json:
        write_result(asked.json, {"rows": told})
    print(table(told))


if __name__ == "__main__":
    main()
