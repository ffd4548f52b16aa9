"""Measures what OpenAI's interface costs: the same streams by gRPC, by Triton's HTTP and by `/v1`, in turn in
one run.

    python -m benchmarks.front_cost --rounds 5 --json benchmarks/results/front_cost.json

`model`: shape S with random weights and the work W, 16 streams in a closed loop. `toy`: an engine that
computes nothing and takes 40 ms a step, 1,024 streams that start at the same time, each with a prompt and an
answer of 200 tokens. Prompts are token ids, no round repeats one; greedy, EOS ignored. The client runs on the
server's processors: by gRPC it is the project's own, which costs more for each piece than the one for HTTP,
so `/v1` is compared with Triton's HTTP as well. Pieces are responses with text.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.common.command_line import command_line
from benchmarks.common.figures import figures_of, median, medians
from benchmarks.common.http_streams import EnsembleStreams, OpenAIStreams
from benchmarks.common.models import VOCABULARY, make_model
from benchmarks.common.work import Job, Timing, Work, load_work
from benchmarks.results_file import table, write_result
from benchmarks.triton_cost import make_tokenizer
from client.async_client import AsyncClient
from python_backends.linux.open_files import raise_limit
from tests.support.server.serving import Gapless
from tests.support.toy_engine import TOY

MODES = ("grpc", "http", "v1")
TOY_STREAMS, TOY_STEP_MS, TOY_TOKENS = 1024, 40, 200
QUICK_STREAMS, QUICK_TOKENS = 8, 20
OPEN_FILES = 8192
TOY_IDS = 900  # of prompts: from 100 on


@dataclass(frozen=True, slots=True)
class Row:
    part: str
    mode: str
    streams: int
    tok_s: float
    ttft_p50_ms: float
    pieces_s: float
    between_pieces_p50_ms: float
    front_us_a_piece: float  # processor time of the front
    server_us_a_token: float  # processor time of all processes of the server
    front_rss_mib: float  # of its largest process


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    work: Work
    vocabulary: int
    settings: dict[str, Any]


class Clients:
    """One client for each mode, connected to `served`."""

    def __init__(self, served: Gapless, num_streams: int) -> None:
        self._url = f"127.0.0.1:{served.grpc_port}"
        self._http = EnsembleStreams(served.http_port, num_streams, lambda event: bool(event["text_output"]))
        self._v1 = OpenAIStreams(served.front_port, "/v1/completions", num_streams)

    def close(self) -> None:
        self._http.close()
        self._v1.close()

    def run(self, mode: str, work: Work) -> list[Timing]:
        if mode == "grpc":
            return asyncio.run(self._by_grpc(work))
        body = {"stream": True, "temperature": 0.0}
        if mode == "http":
            return self._http.run(
                [
                    {
                        **body,
                        "input_ids": job.prompt,
                        "max_tokens": job.max_tokens,
                        "min_tokens": job.max_tokens,
                    }
                    for job in work.jobs
                ]
            )
        return self._v1.run(
            [
                {**body, "prompt": job.prompt, "max_tokens": job.max_tokens, "ignore_eos": True}
                for job in work.jobs
            ]
        )

    async def _by_grpc(self, work: Work) -> list[Timing]:
        clock, jobs, timings = asyncio.get_running_loop().time, iter(work.jobs), list[Timing]()
        async with AsyncClient(self._url) as client:

            async def ask() -> None:
                for job in jobs:
                    timings.append(timing := Timing(clock(), []))
                    count = job.max_tokens
                    pieces = client.stream(job.prompt, temperature=0.0, max_tokens=count, min_tokens=count)
                    async for piece in pieces:
                        timing.tokens += [clock()] * bool(piece.text)
                    timing.ended = clock()

            await asyncio.gather(*(ask() for _ in range(work.in_flight)))
        return timings


def fronts(served: Gapless) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid, words in served.command_lines().items() if "gapless-front" in words]


def processor_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def measure(part: Part, rounds: int) -> list[Row]:
    rows = []
    with (
        Gapless(**part.settings) as served,
        contextlib.closing(Clients(served, part.work.in_flight)) as clients,
    ):
        processes, server = fronts(served), served.processes()
        for number in range(rounds + 1):
            first = number % len(MODES)  # each round begins with another one
            for place, mode in enumerate([*MODES[first:], *MODES[:first]]):
                work = part.work.shifted(7 * (len(MODES) * number + place), part.vocabulary)
                before_s = processor_s(processes), processor_s(server)
                timings = clients.run(mode, work)
                spent_s = processor_s(processes) - before_s[0], processor_s(server) - before_s[1]
                row = row_of(part.name, mode, work, timings, spent_s, processes)
                said = f"{row.tok_s:.0f} tokens/s, first token {row.ttft_p50_ms:.0f} ms"
                print(
                    f"{part.name}, {f'round {number}' if number else 'warm-up'}, {mode}: {said}", flush=True
                )
                rows += [row] if number else []
    return sorted(rows, key=lambda row: MODES.index(row.mode))


def row_of(
    part: str,
    mode: str,
    work: Work,
    timings: list[Timing],
    spent_s: tuple[float, float],
    processes: list[psutil.Process],
) -> Row:
    """`spent_s`: processor time of the front and of the whole server."""
    made = figures_of(work, timings)
    num_pieces = sum(len(timing.tokens) for timing in timings)
    return Row(
        part,
        mode,
        work.in_flight,
        made.tok_s,
        made.ttft_p50_ms,
        made.pieces_s,
        made.between_pieces_p50_ms,
        round(spent_s[0] / num_pieces * 1e6, 1),
        round(spent_s[1] / sum(job.max_tokens for job in work.jobs) * 1e6, 1),
        round(max(process.memory_info().rss for process in processes) / 2**20, 1),
    )


def model_part(directory: Path, dtype: str, quick: bool) -> Part:
    make_model("S", dtype, directory)
    make_tokenizer(directory)
    work = load_work(quick)
    settings = {
        "model.directory": directory,
        "model.dtype": dtype,
        "model.max_model_tokens": work.max_model_tokens,
    }
    return Part("model", work, VOCABULARY, settings)


def toy_part(streams: int, num_tokens: int, processes: int) -> Part:
    generator = np.random.default_rng(0)
    jobs = [Job(generator.integers(0, TOY_IDS, num_tokens).tolist(), num_tokens) for _ in range(streams)]
    settings = {
        "engine.kind": TOY,
        "engine.slots": streams,
        "engine.options": f"step_ms={TOY_STEP_MS}",
        "engine.token_budget": 4096,
        "streams.max_open": max(1024, streams),
        "front.processes": processes,
    }
    return Part("toy", Work(jobs, streams), TOY_IDS, settings)


def parts(directory: Path, arguments: Any) -> Iterator[Part]:
    quick = arguments.quick
    if arguments.part in ("model", None):
        yield model_part(directory, arguments.dtype, quick)
    if arguments.part in ("toy", None):
        streams, num_tokens = (QUICK_STREAMS, QUICK_TOKENS) if quick else (TOY_STREAMS, TOY_TOKENS)
        yield toy_part(streams, num_tokens, arguments.processes)


def compared(rows: list[Row]) -> list[dict[str, Any]]:
    """Compares `/v1` with each other way to ask. Ratios are of the two in one round: their median, the least
    and the most.
    """
    found = []
    for part, mode in dict.fromkeys((row.part, row.mode) for row in rows if row.mode != "v1"):
        v1 = [row for row in rows if (row.part, row.mode) == (part, "v1")]
        others = [row for row in rows if (row.part, row.mode) == (part, mode)]
        pairs = list(zip(v1, others, strict=True))
        speeds = [our.tok_s / their.tok_s for our, their in pairs]
        found.append(
            {
                "part": part,
                "compared with": mode,
                "tok_s": median(speeds, 3),
                "least": round(min(speeds), 3),
                "most": round(max(speeds), 3),
                "server_us_a_token": median(
                    [our.server_us_a_token / their.server_us_a_token for our, their in pairs], 3
                ),
                "ttft_more_ms": median([our.ttft_p50_ms - their.ttft_p50_ms for our, their in pairs], 1),
            }
        )
    return found


def main() -> None:
    parser = command_line(__doc__, quick="a few short streams, one round: does it run at all?")
    parser.add_argument("--part", choices=("model", "toy"), help="default: both")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--processes", type=int, default=1, help="of the front, with the toy engine")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    raise_limit(OPEN_FILES)
    with tempfile.TemporaryDirectory() as directory:
        measured = [row for part in parts(Path(directory), arguments) for row in measure(part, rounds)]
    rows, ratios = medians(measured, ("part", "mode", "streams")), compared(measured)
    if arguments.json:
        write_result(arguments.json, {"rounds": rounds, "rows": rows, "compared": ratios})
    print(table(rows))
    print(table(ratios))


if __name__ == "__main__":
    main()
