"""Compares policies through Triton: a published model answers prompts that people would write, while slots
and KV blocks are scarce, with lengths predicted by what the server itself has learned.

    python -m benchmarks.scheduling.real_served --json benchmarks/results/scheduling_real_served.json

A server of SmolLM2-135M-Instruct learns from 500 answers (or `--learned DIRECTORY`, where one has learned).
Then each policy has a server of its own with what was learned, and gets the same prompts, about topics that
were not learned from, with the same seeds at the same times: temperature 0.7, at most 1,024 tokens, gRPC.
`oracle` is `ours` with lengths that are certain: each request asks for exactly as many tokens as it got from
`ours`; `ours_none` predicts nothing. Capacity is the throughput of `ours` when requests always wait. Good:
first token within --ttft, then --tpot a token on average. With --instances 2 slots and blocks are divided
among two instances: predicted lengths also say which of them gets a request, and which requests move.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.policies import setting_of
from benchmarks.real_lengths.served import LEARNED, NEVER_S, QUICK_LEARNED, QUICK_TOKENS, chosen, learn_in
from benchmarks.real_prompts.__main__ import TEMPERATURE
from benchmarks.real_prompts.prompts import Prompt, read_prompts
from benchmarks.results_file import table, write_result
from benchmarks.scheduling.figures import Figures, Times, figures_of
from client import AsyncClient
from tests.support.server.serving import Gapless

POLICIES = ("fcfs", "past_future", "hrrn", "sjf", "ours_none", "ours", "oracle")
NO_LENGTHS = "ours_none"
DEFAULT = ("fcfs", "past_future", "hrrn", "ours", "oracle")
MAX_TOKENS, BLOCK_TOKENS = 1024, 32
IN_FLIGHT, CLOSED = 2, 6  # of the closed loop: requests at the same time, and all of them, for each slot


@dataclass(frozen=True, slots=True)
class Row(Figures):
    answers: int
    tokens: int
    moves: int  # of running or waiting requests to another instance


@dataclass(slots=True)
class Heard:
    """One answer: when it was asked for, when its first and its last piece came, how many tokens it has."""

    asked_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0


class Bench:
    def __init__(self, asked: argparse.Namespace, learned: Path, prompts: Sequence[Prompt]) -> None:
        self._asked, self._learned, self._prompts = asked, learned, prompts
        self._most = QUICK_TOKENS if asked.quick else MAX_TOKENS
        self._lengths: dict[tuple[float, float, int], list[int]] = {}  # of `ours`, by load, cv and draw

    @contextmanager
    def _server(self, policy: str) -> Iterator[Gapless]:
        """With a copy of what was learned, so that no run learns from another one."""
        asked = self._asked
        with tempfile.TemporaryDirectory(prefix="learned-") as folder:
            shutil.copytree(self._learned, folder, dirs_exist_ok=True)
            with Gapless(
                **{
                    "model.directory": "auto",
                    "prediction.directory": folder,
                    "prediction.relearn_s": NEVER_S,
                    "prediction.enabled": policy != NO_LENGTHS,
                    "cluster.instances": asked.instances,
                    "engine.slots": asked.slots // asked.instances,
                    "engine.kv_blocks": asked.blocks * asked.slots // asked.instances,
                    "scheduling.policy": setting_of("ours" if policy in ("oracle", NO_LENGTHS) else policy),
                    "scheduling.ttft_s": asked.ttft,
                    "finetuning.enabled": False,
                }
            ) as served:
                yield served

    def capacity(self) -> float:
        """Requests a second while requests always wait: tokens a second between the first end and the last
        begin / mean length, because short answers end first.
        """
        count = CLOSED * self._asked.slots
        places = np.arange(count) % len(self._prompts)
        with self._server("ours") as served:
            heard = asyncio.run(self._ask(served, places, np.zeros(count), IN_FLIGHT * self._asked.slots))
        begin_s = min(each.last_s for each in heard)
        end_s = max(each.asked_s for each in heard)
        shares = [
            max(0.0, min(each.last_s, end_s) - max(each.first_s, begin_s)) / (each.last_s - each.first_s)
            for each in heard
            if each.tokens > 1
        ]
        tokens = [each.tokens for each in heard if each.tokens > 1]
        rate = float(np.dot(shares, tokens)) / (end_s - begin_s)
        return rate / float(np.mean([each.tokens for each in heard]))

    def row(self, policy: str, load: float, cv: float, rate: float, draw: int) -> Row:
        random, shape = np.random.default_rng(1 + draw), 1 / cv**2
        count = max(20, round(rate * load * self._asked.seconds))
        due_s = np.cumsum(random.gamma(shape, 1.0, count))
        due_s *= self._asked.seconds / due_s[-1]
        places = random.permutation(len(self._prompts))[:count]
        if count > len(self._prompts):
            raise SystemExit(f"--seconds: {count} requests, but there are {len(self._prompts)} prompts")
        lengths = self._lengths[load, cv, draw] if policy == "oracle" else None
        with self._server(policy) as served:
            heard = asyncio.run(self._ask(served, places, due_s, 0, lengths))
            metrics = served.metrics()
        if policy == "ours":
            self._lengths[load, cv, draw] = [each.tokens for each in heard]
        preemptions = sum(value for name, value in metrics.items() if name.startswith("gapless_evictions"))
        moves = sum(
            value
            for name, value in metrics.items()
            if name.startswith("gapless_migrations_total") and 'outcome="done"' in name
        )
        asked_s, first_s, last_s, tokens = (
            np.array([getattr(each, field.name) for each in heard]) for field in fields(Heard)
        )
        times, limits_s = Times(asked_s, first_s, last_s, tokens), (self._asked.ttft, self._asked.tpot)
        figures = figures_of(policy, load, cv, times, int(preemptions), limits_s)
        return Row(**figures, answers=len(heard), tokens=int(tokens.sum()), moves=int(moves))

    async def _ask(
        self,
        served: Gapless,
        places: NDArray[np.int64],
        due_s: NDArray[np.float64],
        in_flight: int,
        lengths: Sequence[int] | None = None,
    ) -> list[Heard]:
        """Asks each prompt at its time. With `in_flight`, also waits until fewer than that are open."""
        clock, begin_s = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
        gate = asyncio.Semaphore(in_flight or len(places))
        with tqdm(total=len(places), unit="answer", leave=False, mininterval=2) as bar:

            async def one(client: AsyncClient, number: int) -> Heard:
                async with gate:
                    await asyncio.sleep(begin_s + float(due_s[number]) - clock())
                    mine = Heard(clock())
                    most = lengths[number] if lengths else self._most
                    least = most if lengths else 1
                    pieces = client.stream(
                        list(self._prompts[places[number]].messages),
                        max_tokens=most,
                        min_tokens=least,
                        temperature=TEMPERATURE,
                        seed=1 + number,
                        return_num_output_tokens=True,
                    )
                    async for piece in pieces:
                        mine.first_s = mine.first_s or clock()
                        mine.tokens += piece.num_output_tokens or 0
                    mine.last_s = clock()
                    bar.update()
                    return mine

            async with AsyncClient(f"127.0.0.1:{served.grpc_port}") as client, asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(client, number)) for number in range(len(places))]
            return [task.result() for task in tasks]


def arguments() -> argparse.Namespace:
    parser = command_line(
        __doc__, f"{QUICK_LEARNED} answers learned, {QUICK_TOKENS} tokens each, ten seconds"
    )
    numbers = lambda text: [float(each) for each in text.split(",")]  # noqa: E731
    parser.add_argument(
        "--learned", type=Path, help="what a server of the same model has learned; not changed"
    )
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(DEFAULT))
    parser.add_argument("--loads", type=numbers, default=[0.9, 1.2], help="of capacity")
    parser.add_argument("--capacity", type=float, help="requests a second; default: measured first")
    parser.add_argument("--cvs", type=numbers, default=[1.0], help="of the gaps between arrivals")
    parser.add_argument("--seconds", type=float, default=90.0, help="time for which requests arrive")
    parser.add_argument("--rounds", type=int, default=1, help="draws of prompts and arrivals")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=7, help=f"KV blocks of {BLOCK_TOKENS} tokens a slot")
    parser.add_argument("--instances", type=int, choices=(1, 2, 4), default=1)
    parser.add_argument("--ttft", type=float, default=2.0, help="seconds")
    parser.add_argument("--tpot", type=float, default=0.15, help="seconds")
    asked = parser.parse_args()
    if unknown := sorted({*asked.policies} - {*POLICIES}):
        parser.error(f"--policies: {', '.join(unknown)}: must be of {', '.join(POLICIES)}")
    if "oracle" in asked.policies and "ours" not in asked.policies[: asked.policies.index("oracle")]:
        parser.error("--policies: oracle: must come after ours, whose lengths it knows")
    if asked.quick:
        asked.seconds, asked.loads, asked.policies = 10.0, [1.2], ["fcfs", "ours", "oracle"]
    return asked


def main() -> None:
    asked = arguments()
    prompts = chosen(read_prompts())
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="learned-") as folder:
        if not (learned := asked.learned):
            learned = Path(folder)
            count, most = (QUICK_LEARNED, QUICK_TOKENS) if asked.quick else (LEARNED, MAX_TOKENS)
            learn_in(learned, prompts["learned"][:count], most)
        bench = Bench(asked, learned, prompts["new topics"])
        rate = asked.capacity or bench.capacity()
        print(f"capacity: {rate:.2f} requests a second", flush=True)
        cases = list(product(range(asked.rounds), asked.cvs, asked.loads, asked.policies))
        for draw, cv, load, policy in tqdm(cases, desc="policies"):
            rows.append(bench.row(policy, load, cv, rate, draw))
            tqdm.write(" ".join(map(str, asdict(rows[-1]).values())))
    told = [asdict(row) for row in rows]
    limits = {
        name: getattr(asked, name) for name in ("ttft", "tpot", "slots", "blocks", "instances", "seconds")
    }
    if asked.json:
        write_result(asked.json, {"capacity_req_s": round(rate, 3), "limits": limits, "rows": told})
    print(table(told))


if __name__ == "__main__":
    main()
