"""Measures what streams notice of Tinker's SDK, which trains an adapter step by step on the server meanwhile.

    python -m benchmarks.tinker_cost --json benchmarks/results/tinker_cost.json

The model that is served by default, with adapters. 16 streams of `/v1/chat/completions` are always open:
32 requests, whose prompts are those of `real_prompts`, 80 tokens each, EOS ignored. In one window of each
round the SDK trains, in a process of its own: `forward_backward` of eight such prompts with their targets,
then an optimiser step, again and again; in the other one it does nothing. Rounds take turns in which comes
first. A request's time per output token (TPOT) is that from its first text to its end, over the 79 tokens
after the first. The objective is three times the median TPOT of a window without training on a server before;
it is the setting `scheduling.late_token_ms`. `within` is the share of requests whose TPOT is not above it,
`late` the share of tokens whose text comes later than this after the text before. Needs
`build/set-up tinker`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from tqdm import tqdm

from benchmarks import ROOT
from benchmarks.common.command_line import command_line
from benchmarks.common.http_streams import OpenAIStreams
from benchmarks.common.work import Timing
from benchmarks.real_prompts.prompts import Prompt, read_prompts
from benchmarks.results_file import table, write_result
from tests.support.server.serving import Gapless
from tests.support.tinker_sdk import TINKER

STREAMS, REQUESTS, ANSWER = 16, 32, 80
EXAMPLES, EXAMPLE_TOKENS = 8, 128  # of a step of training; the most tokens of an example
ROUNDS = 5
OBJECTIVE_TIMES = 3  # the median TPOT of serving alone


@dataclass(frozen=True, slots=True)
class Window:
    tok_s: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    within: float
    late: float
    trained_tok_s: float
    steps: int
    loss: float


class Sdk:
    """The process of the SDK."""

    def __init__(self, url: str, model: str, examples: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.common.tinker_client", url, model, str(examples)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(TINKER)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, word: str) -> dict[str, Any]:
        """Raises RuntimeError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the SDK's process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@contextmanager
def sdk(url: str, prompts: list[Prompt]) -> Iterator[Sdk]:
    """Its examples are the first of `prompts`, as the model gets them."""
    with httpx2.Client(base_url=url, timeout=60) as client, tempfile.TemporaryDirectory() as directory:
        model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        asked = [
            client.post("/tokenize", json={"messages": prompt.messages}) for prompt in prompts[:EXAMPLES]
        ]
        texts = [each.raise_for_status().json()["tokens"][:EXAMPLE_TOKENS] for each in asked]
        examples = Path(directory, "examples.json")
        examples.write_text(json.dumps(texts))
        with closing(Sdk(url, model, examples)) as process:
            yield process


def bodies(prompts: list[Prompt]) -> list[dict[str, Any]]:
    always = {"stream": True, "temperature": 0.0, "max_tokens": ANSWER, "ignore_eos": True}
    return [{**always, "messages": prompt.messages} for prompt in prompts]


def open_streams(served: Gapless) -> OpenAIStreams:
    return OpenAIStreams(served.front_port, "/v1/chat/completions", STREAMS)


def tpots_ms(timings: list[Timing]) -> Any:
    """[requests]. A chunk may have the text of several tokens, or of none: the answers' length is known."""
    return np.array([1e3 * (each.ended - each.tokens[0]) / (ANSWER - 1) for each in timings])


def objective_ms(served: Gapless, num_requests: int) -> float:
    prompts = read_prompts()[-num_requests:]
    with closing(open_streams(served)) as streams:
        streams.run(bodies(prompts[:STREAMS]))  # warms up
        return round(OBJECTIVE_TIMES * float(np.median(tpots_ms(streams.run(bodies(prompts))))), 1)


def window(streams: OpenAIStreams, prompts: list[Prompt], trainer: Sdk | None, objective_ms: float) -> Window:
    """Trains while the requests are answered, if there is a trainer."""
    if trainer is not None:
        trainer.ask("go")
    began_s = time.perf_counter()
    timings = streams.run(bodies(prompts))
    lasted_s = time.perf_counter() - began_s
    trained = {} if trainer is None else trainer.ask("stop")
    tpots, gaps = tpots_ms(timings), 1e3 * np.concatenate([np.diff(each.tokens) for each in timings])
    p50, p99 = np.percentile(tpots, (50, 99)).tolist()
    return Window(
        tok_s=ANSWER * len(timings) / lasted_s,
        tpot_p50_ms=p50,
        tpot_p99_ms=p99,
        within=float((tpots <= objective_ms).mean()),
        late=np.count_nonzero(gaps > objective_ms) / (len(timings) * (ANSWER - 1)),
        trained_tok_s=trained.get("tokens", 0) / lasted_s,
        steps=trained.get("steps", 0),
        loss=trained.get("loss", 0.0),
    )


def measure(served: Gapless, rounds: int, num_requests: int, objective_ms: float) -> list[dict[str, Any]]:
    url, prompts, rows = f"http://127.0.0.1:{served.front_port}", read_prompts(), []
    with closing(open_streams(served)) as streams, sdk(url, prompts) as trainer:
        streams.run(bodies(prompts[:STREAMS]))  # warms up
        for number in tqdm(range(rounds), desc="rounds", disable=None):
            first = EXAMPLES + number * num_requests
            asked = prompts[first : first + num_requests]
            for trains in (False, True) if number % 2 == 0 else (True, False):
                found = window(streams, asked, trainer if trains else None, objective_ms)
                rows.append({"round": number, "trains": trains, **asdict(found)})
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The median of the rounds and, in brackets, the least and the most, with training and without."""

    def told(name: str, trains: bool) -> str:
        values = [row[name] for row in rows if row["trains"] is trains]
        return f"{np.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"

    names = ("tok_s", "tpot_p50_ms", "tpot_p99_ms", "within", "late", "trained_tok_s", "steps")
    return [
        {"the SDK": what, **{name: told(name, trains) for name in names}}
        for what, trains in (("waits", False), ("trains", True))
    ]


def main() -> None:
    asked = command_line(__doc__, "one short round, the small model").parse_args()
    if not TINKER.exists():
        raise SystemExit("Tinker's SDK is not installed: build/set-up tinker")
    rounds, num_requests = (1, STREAMS) if asked.quick else (ROUNDS, REQUESTS)
    with tempfile.TemporaryDirectory() as directory:
        given: dict[str, Any] = {
            "model.directory": "bundled" if asked.quick else "auto",
            "adapters.directory": f"{directory}/adapters",
            "finetuning.directory": f"{directory}/jobs",
        }
        Path(given["adapters.directory"]).mkdir()
        with Gapless(**given) as served:
            objective = objective_ms(served, num_requests)
        with Gapless(**given, **{"scheduling.late_token_ms": objective}) as served:
            rows = measure(served, rounds, num_requests, objective)
    if asked.json:
        write_result(asked.json, {"objective_ms": objective, "rows": rows})
    print(f"objective: {objective} ms")
    print(table(summary(rows)))


if __name__ == "__main__":
    main()
