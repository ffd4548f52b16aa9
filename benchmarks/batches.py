"""Measures how long requests wait for their first token while a batch is answered, compared with without.

    python -m benchmarks.batches --json benchmarks/results/batches.json

The model that is served by default. Requests of 64 token ids come as a Poisson process, one a second, and
stream 40 tokens each by /v1/completions: 60 without a batch, and 60 at the same times beside one of 200 lines
(64 token ids, 20 tokens each), which is then cancelled, or in the last round answered to its end with no
other request. Rounds take turns in which comes first; percentiles are of the requests of all rounds. `low`
and `high` are the 95 % interval of a ratio (bootstrap of the requests).
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from typing import Any, Final

import numpy as np
from openai import OpenAI
from openai.types import BatchRequestCounts
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.common.http_streams import OpenAIStreams
from benchmarks.results_file import table, write_result
from tests.support.server.serving import Gapless

ENDPOINT: Final = "/v1/completions"
PROMPT, ANSWER, LINE_ANSWER = 64, 40, 20  # tokens
NUM_LINES, NUM_REQUESTS, ROUNDS = 200, 60, 5
MOST_OPEN = 32
IDS = 200  # of prompts: from 100 on
PERCENTILES = (50, 90, 99)
DRAWN, SEED = 10_000, 0


class Measured:
    def __init__(self, served: Gapless) -> None:
        self._url = f"http://127.0.0.1:{served.front_port}/v1"
        self._generator = np.random.default_rng(0)
        self.streams = OpenAIStreams(served.front_port, ENDPOINT, MOST_OPEN)

    def first_tokens_ms(self, due_s: list[float]) -> list[float]:
        """Of a request at each of these times, in seconds from now on."""
        timings = self.streams.run([{**self._body(ANSWER), "stream": True} for _ in due_s], due_s)
        return [1e3 * (timing.tokens[0] - timing.submitted) for timing in timings]

    def batch(self, client: OpenAI, count: int) -> Any:
        """A new batch of `count` lines."""
        lines = io.BytesIO()
        for number in range(count):
            head = {"custom_id": str(number), "method": "POST", "url": ENDPOINT}
            lines.write(json.dumps({**head, "body": self._body(LINE_ANSWER)}).encode() + b"\n")
        file = client.files.create(file=("lines.jsonl", lines.getvalue()), purpose="batch")
        return client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")

    def client(self) -> OpenAI:
        return OpenAI(base_url=self._url, api_key="none")

    def _body(self, max_tokens: int) -> dict[str, Any]:
        prompt = (100 + self._generator.integers(0, IDS, PROMPT)).tolist()
        return {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}


def measure(served: Gapless, rounds: int, num_lines: int, num_requests: int) -> dict[str, Any]:
    measured, generator = Measured(served), np.random.default_rng(SEED)
    alone: list[float] = []
    beside: list[float] = []
    meanwhile, rest_s = [], 0.0
    with contextlib.closing(measured.streams), measured.client() as client:
        measured.first_tokens_ms([0.0, 1.0, 2.0])  # warms up
        for number in tqdm(range(rounds), desc="rounds", disable=None):
            due_s = np.cumsum(generator.exponential(1.0, num_requests)).tolist()
            if number % 2 == 0:
                alone += measured.first_tokens_ms(due_s)
            batch = measured.batch(client, num_lines)
            beside += measured.first_tokens_ms(due_s)
            meanwhile.append(counts_of(client, batch.id).completed)
            if number == rounds - 1:
                rest_s = answered_in_s(client, batch.id, num_lines)
            else:
                cancel(client, batch.id)
            if number % 2 == 1:
                alone += measured.first_tokens_ms(due_s)
    rows = [{"part": name, **figures(each)} for name, each in (("alone", alone), ("with a batch", beside))]
    said = {"lines_answered_meanwhile": meanwhile, "rest_s": rest_s}
    return {"rows": rows, "ratios": ratios(alone, beside), "lines": num_lines, **said}


def cancel(client: OpenAI, batch_id: str) -> None:
    if client.batches.retrieve(batch_id).status == "in_progress":
        client.batches.cancel(batch_id)
    while client.batches.retrieve(batch_id).status in ("in_progress", "cancelling"):
        time.sleep(0.2)


def answered_in_s(client: OpenAI, batch_id: str, num_lines: int) -> float:
    """Waits until the batch has been answered."""
    began_s = time.perf_counter()
    while client.batches.retrieve(batch_id).status == "in_progress":
        time.sleep(0.2)
    counts = counts_of(client, batch_id)
    assert (counts.completed, counts.failed) == (num_lines, 0)
    return round(time.perf_counter() - began_s, 1)


def counts_of(client: OpenAI, batch_id: str) -> BatchRequestCounts:
    counts = client.batches.retrieve(batch_id).request_counts
    assert counts is not None
    return counts


def figures(first_tokens_ms: list[float]) -> dict[str, float]:
    values = np.percentile(first_tokens_ms, PERCENTILES).tolist()
    named = {f"p{each}_ms": round(value, 1) for each, value in zip(PERCENTILES, values, strict=True)}
    return {"requests": len(first_tokens_ms), **named}


def ratios(alone: list[float], beside: list[float]) -> list[dict[str, float]]:
    generator = np.random.default_rng(SEED)
    drawn = [
        np.percentile(generator.choice(each, (DRAWN, len(each))), PERCENTILES, axis=1)
        for each in (beside, alone)
    ]
    low, high = np.quantile(drawn[0] / drawn[1], (0.025, 0.975), axis=1)
    found = np.percentile(beside, PERCENTILES) / np.percentile(alone, PERCENTILES)
    names = ("percentile", "ratio", "low", "high")
    return [
        dict(zip(names, np.round(each, 3).tolist(), strict=True))
        for each in zip(PERCENTILES, found, low, high, strict=True)
    ]


def main() -> None:
    asked = command_line(__doc__, "six lines, few requests, the small model").parse_args()
    with Gapless(**{"model.directory": "bundled" if asked.quick else "auto"}) as served:
        result = measure(served, *((2, 6, 3) if asked.quick else (ROUNDS, NUM_LINES, NUM_REQUESTS)))
    if asked.json:
        write_result(asked.json, result)
    print(table(result["rows"]))
    print(table(result["ratios"]))


if __name__ == "__main__":
    main()
