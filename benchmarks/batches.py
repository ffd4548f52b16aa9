"""Measures how long requests wait for their first token while a batch is answered, compared with without.

    python -m benchmarks.batches --json benchmarks/results/batches.json

The model that is served by default. Requests of 64 token ids come as a Poisson process, one a second, and
stream 40 tokens each by /v1/completions. Three parts in one run: without a batch, with one of 200 lines
(64 token ids, 20 tokens each), and without again; the two without are one figure. Before the last part the
batch is answered to its end with no other request.
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

from benchmarks.common.command_line import command_line
from benchmarks.common.http_streams import HttpStreams
from benchmarks.results_file import table, write_result
from tests.support.server.serving import Gapless

ENDPOINT: Final = "/v1/completions"
PROMPT, ANSWER, LINE_ANSWER = 64, 40, 20  # tokens
NUM_LINES, NUM_ALONE, NUM_WITH = 200, 60, 120
MOST_OPEN = 32
IDS = 200  # of prompts: from 100 on


class Measured:
    def __init__(self, served: Gapless) -> None:
        self._url = f"http://127.0.0.1:{served.front_port}/v1"
        self._generator = np.random.default_rng(0)
        self.streams = HttpStreams(
            served.front_port,
            ENDPOINT,
            MOST_OPEN,
            lambda event: bool(event["choices"][0]["text"]),
            lambda event: event["choices"][0]["finish_reason"] is not None,
        )

    def first_tokens_ms(self, count: int) -> list[float]:
        """Of `count` requests that come at random, one a second."""
        due_s = np.cumsum(self._generator.exponential(1.0, count)).tolist()
        timings = self.streams.run([{**self._body(ANSWER), "stream": True} for _ in range(count)], due_s)
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


def measure(served: Gapless, quick: bool) -> dict[str, Any]:
    measured = Measured(served)
    num_lines, num_alone, num_with = (6, 3, 6) if quick else (NUM_LINES, NUM_ALONE, NUM_WITH)
    with contextlib.closing(measured.streams), measured.client() as client:
        measured.first_tokens_ms(3)  # warms up
        alone = measured.first_tokens_ms(num_alone)
        batch = measured.batch(client, num_lines)
        beside = measured.first_tokens_ms(num_with)
        meanwhile = counts_of(client, batch.id).completed
        began_s = time.perf_counter()
        while client.batches.retrieve(batch.id).status == "in_progress":
            time.sleep(0.2)
        rest_s = time.perf_counter() - began_s
        counts = counts_of(client, batch.id)
        assert (counts.completed, counts.failed) == (num_lines, 0)
        alone += measured.first_tokens_ms(num_alone)
    rows: list[dict[str, Any]] = [
        {"part": "alone", **figures(alone)},
        {"part": "with a batch", **figures(beside)},
    ]
    ratios = {name: round(rows[1][name] / rows[0][name], 3) for name in ("p50_ms", "p90_ms", "p99_ms")}
    said = {"ratios": ratios, "lines_answered_meanwhile": meanwhile, "rest_s": round(rest_s, 1)}
    return {"rows": rows, "lines": num_lines, **said}


def counts_of(client: OpenAI, batch_id: str) -> BatchRequestCounts:
    counts = client.batches.retrieve(batch_id).request_counts
    assert counts is not None
    return counts


def figures(first_tokens_ms: list[float]) -> dict[str, float]:
    p50, p90, p99 = np.percentile(first_tokens_ms, (50, 90, 99))
    return {
        "requests": len(first_tokens_ms),
        "p50_ms": round(float(p50), 1),
        "p90_ms": round(float(p90), 1),
        "p99_ms": round(float(p99), 1),
    }


def main() -> None:
    asked = command_line(__doc__, "six lines, few requests, the small model").parse_args()
    served = Gapless(**{"model.directory": "bundled" if asked.quick else "auto"})
    try:
        result = measure(served, asked.quick)
    finally:
        served.stop()
    print({name: value for name, value in result.items() if name != "rows"})
    if asked.json:
        write_result(asked.json, result)
    print(table(result["rows"]))


if __name__ == "__main__":
    main()
