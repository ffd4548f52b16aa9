"""`cluster.py --check`: the simulation against four real instances behind Triton, with the same requests at
the same times.

The toy engine is paced: each step takes the same time, whatever it computes. That time, and what Triton and
the client add to a first token, are measured with one request at a time; everything else of the simulation is
as in the other cases. Clients ask for exactly the tokens of each answer, so the admission `fcfs` reserves the
same memory on both sides.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from benchmarks.cluster.hosts import Machine
from benchmarks.cluster.requests import BEGIN_S, Doubles, Load, Work, draw_work
from benchmarks.cluster.runs import Simulation
from benchmarks.common.http_streams import EnsembleStreams
from benchmarks.common.work import Timing
from benchmarks.policies import setting_of
from benchmarks.results_file import table
from python_backends.settings import ClusterSettings
from tests.support.server.serving import Gapless
from tests.support.server.toy_model import write_toy_model
from tests.support.toy_engine import toy_settings

POLICIES = ("infaas", "llumnix", "ours")
NUM_INSTANCES, NUM_SLOTS, NUM_BLOCKS, BLOCK_TOKENS, TOKEN_BUDGET = 4, 16, 128, 32, 512
MODEL_TOKENS, MOST_TOKENS, MEAN_TOKENS = 2048, 800, 64.0
STEP_MS = 25.0
CV = 2.0
LOAD = 1.6  # of the throughput of all slots; lengths above MOST_TOKENS are cut, so less is asked for
NUM_ALONE = 8  # requests, one at a time
ALONE_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Row:
    policy: str
    round: int
    real_mean_ttft_ms: float
    simulated_mean_ttft_ms: float
    real_mean_latency_s: float
    simulated_mean_latency_s: float
    difference: str  # of the mean time to the end: (real − simulated) / real
    real_moves: int
    simulated_moves: int


def check(num_requests: int, rounds: int, policies: Sequence[str] = POLICIES) -> list[Row]:
    """Prints a table of `rounds` draws of requests for each policy, and returns it."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        model = write_toy_model(Path(directory))
        for policy in policies:
            with contextlib.closing(_Served(model, policy)) as served:
                step_s, added_s = served.measure_alone()
                for number in tqdm(range(1, rounds + 1), desc=policy):
                    work, bodies = served.draw(num_requests, step_s, number)
                    row = _compare(served, work, bodies, step_s, added_s)
                    rows.append(replace(row, round=number))
                    tqdm.write(json.dumps(asdict(rows[-1])))
    print(table([asdict(row) for row in rows]))
    return rows


class _Served:
    """Real instances, the texts that they get, and one thread that reads all streams."""

    def __init__(self, model: Path, policy: str) -> None:
        self.policy = policy
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.gapless = Gapless(
            **{
                **toy_settings(str(model), step_ms=STEP_MS),
                "engine.slots": NUM_SLOTS,
                "engine.kv_blocks": NUM_BLOCKS,
                "engine.block_tokens": BLOCK_TOKENS,
                "engine.token_budget": TOKEN_BUDGET,
                "scheduling.policy": "fcfs",
                "cluster.instances": NUM_INSTANCES,
                "cluster.policy": setting_of(policy),
            }
        )

    def close(self) -> None:
        self.gapless.stop()

    def run(self, bodies: list[dict[str, Any]], due_s: Sequence[float], num_connections: int) -> list[Timing]:
        streams = EnsembleStreams(
            self.gapless.http_port, num_connections, lambda event: bool(event["text_output"])
        )
        with contextlib.closing(streams):
            return streams.run(bodies, due_s)

    def measure_alone(self) -> tuple[float, float]:
        """Returns the seconds of a step, and those that a first token takes in addition to its step."""
        body = self._body("alone", ALONE_TOKENS)
        timings = self.run([body] * NUM_ALONE, [0.0] * NUM_ALONE, 1)[1:]
        ttft_s = np.median([each.tokens[0] - each.submitted for each in timings])
        latency_s = np.median([each.ended - each.submitted for each in timings])
        step_s = float(latency_s - ttft_s) / (ALONE_TOKENS - 1)
        return step_s, float(ttft_s) - step_s

    def draw(self, count: int, step_s: float, seed: int) -> tuple[Work, list[dict[str, Any]]]:
        """Returns requests of the load LOAD, with the true lengths of their prompts."""
        rate = LOAD * NUM_INSTANCES * NUM_SLOTS / (MEAN_TOKENS * step_s)
        work = draw_work(Load(rate, CV, MEAN_TOKENS, num_before=0), count, seed)
        answers = np.minimum(work.answers, MOST_TOKENS)
        texts = [self._text(seed, n, min(int(length), MOST_TOKENS)) for n, length in enumerate(work.prompts)]
        prompts = np.array([len(self._tokenizer.encode(text)) for text in texts])
        bodies = [self._body(text, int(answer)) for text, answer in zip(texts, answers, strict=True)]
        return replace(work, prompts=prompts, answers=answers, asks_exactly=True), bodies

    def num_moves(self) -> int:
        """Completed ones since the start."""
        names = [name for name in self.gapless.metrics() if name.startswith("gapless_migrations_total")]
        return round(sum(self.gapless.metrics()[name] for name in names if '"done"' in name))

    def _text(self, seed: int, number: int, num_tokens: int) -> str:
        """Begins differently from all others, so that no prefix is found."""
        text = f"{seed}.{number}"
        return text + " x" * (max(0, num_tokens - len(self._tokenizer.encode(text))) // 2)  # two tokens each

    @staticmethod
    def _body(text: str, num_tokens: int) -> dict[str, Any]:
        return {"text_input": text, "stream": True, "max_tokens": num_tokens, "min_tokens": num_tokens}


def _compare(served: _Served, work: Work, bodies: list[dict[str, Any]], step_s: float, added_s: float) -> Row:
    due_s = work.due_s - BEGIN_S
    before = served.num_moves()
    timings = served.run(bodies, due_s.tolist(), len(bodies))
    real_moves = served.num_moves() - before
    ttft_s = np.array([each.tokens[0] - each.submitted for each in timings])
    latency_s = np.array([each.ended - each.submitted for each in timings])
    simulated_ttft_s, simulated_latency_s, simulated_moves = _simulate(served.policy, work, step_s)
    simulated_s = float(simulated_latency_s.mean()) + added_s
    real_s = float(latency_s.mean())
    return Row(
        policy=served.policy,
        round=0,
        real_mean_ttft_ms=round(float(ttft_s.mean()) * 1000, 1),
        simulated_mean_ttft_ms=round((float(simulated_ttft_s.mean()) + added_s) * 1000, 1),
        real_mean_latency_s=round(real_s, 3),
        simulated_mean_latency_s=round(simulated_s, 3),
        difference=f"{(real_s - simulated_s) / real_s:+.1%}",
        real_moves=real_moves,
        simulated_moves=simulated_moves,
    )


def _simulate(policy: str, work: Work, step_s: float) -> tuple[Doubles, Doubles, int]:
    """Returns seconds to the first token and to the last one of each request, and the number of moves."""
    machine = Machine(
        slots=NUM_SLOTS,
        blocks=NUM_BLOCKS,
        block_tokens=BLOCK_TOKENS,
        token_budget=TOKEN_BUDGET,
        step_s=(step_s, 0.0, 0.0, 0.0, 0.0),
        block_bytes=float(BLOCK_TOKENS * 4),
        bytes_per_s=2e9,
        admission="fcfs",
        max_model_tokens=MODEL_TOKENS,
    )
    settings = ClusterSettings(instances=NUM_INSTANCES, policy=setting_of(policy))
    simulation = Simulation(machine, settings, work)
    served = simulation.run(until_ended=True)
    return served.ttft_s, served.latency_s, served.moves["done"]
