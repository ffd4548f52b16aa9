"""Measures how many streams Triton can serve: an engine that computes nothing and is as fast as a GPU, by
itself and through the ensemble.

    python -m benchmarks.many_streams --json benchmarks/results/many_streams.json

All streams start at the same time, each with 200 prompt tokens and an answer of 200. `--streams` sets the
time of the toy engine's steps, by default 4.5 to 20 ms: up to 25,600 tokens/s, where TensorRT-LLM publishes
10,121 for 8 billion parameters on an H200. `instance`: the instance process, its loop driven over its own
wire; `ensemble`: the whole way through Triton, streaming over HTTP, the client on the same processors. Pieces
are responses with text; when Triton is at its limit, a stream's tokens are sent together, and the engine must
not wait for them.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.command_line import command_line
from benchmarks.common.figures import figures_of, medians
from benchmarks.common.http_streams import EnsembleStreams
from benchmarks.common.work import Job, Timing, Work
from benchmarks.results_file import table, write_result
from benchmarks.triton_cost import Instance
from python_backends.settings import ROOT, load
from tests.support.server.serving import Gapless
from tests.support.toy_engine import TOY

STREAMS = "16:4.5,64:6,256:12,512:20"
QUICK_STREAMS, QUICK_TOKENS = "4:5", 20
NUM_TOKENS = 200  # of a prompt, and of an answer


@dataclass(frozen=True, slots=True)
class Row:
    mode: str
    streams: int
    step_ms: float
    tok_s: float
    ttft_p50_ms: float
    pieces_s: float
    between_pieces_p50_ms: float
    between_pieces_p99_ms: float


def row_of(mode: str, streams: int, step_ms: float, work: Work, timings: list[Timing]) -> Row:
    made = figures_of(work, timings)
    between_ms = made.between_pieces_p50_ms, made.between_pieces_p99_ms
    return Row(mode, streams, step_ms, made.tok_s, made.ttft_p50_ms, made.pieces_s, *between_ms)


def text_of(number: int, job: Job) -> str:
    """Returns a text about as long as the job's prompt; the texts of other jobs begin differently."""
    return f"{number} " + " ".join(str(token) for token in job.prompt)[: 2 * len(job.prompt)]


def measure(streams: int, step_ms: float, num_tokens: int, rounds: int) -> list[Row]:
    settings = {
        "engine.kind": TOY,
        "engine.slots": str(streams),
        "engine.options": f"step_ms={step_ms}",
        "engine.token_budget": "4096",
        "streams.max_open": str(max(1024, streams)),
    }
    generator, rows = np.random.default_rng(0), []
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        instance = stack.enter_context(
            contextlib.closing(Instance(load(ROOT / "gapless.toml", settings), Path(directory)))
        )
        served = stack.enter_context(Gapless(**settings))
        ensemble = EnsembleStreams(served.http_port, streams, lambda event: bool(event["text_output"]))
        stack.callback(ensemble.close)
        for number in range(rounds + 1):
            jobs = [
                Job(generator.integers(100, 1000, num_tokens).tolist(), num_tokens) for _ in range(streams)
            ]
            work = Work(jobs, streams)
            bodies = [
                {
                    "text_input": text_of(place, job),
                    "stream": True,
                    "max_tokens": job.max_tokens,
                    "min_tokens": job.max_tokens,
                }
                for place, job in enumerate(jobs)
            ]
            pair = [
                row_of(mode, streams, step_ms, work, timings)
                for mode, timings in (("instance", instance.run(work)), ("ensemble", ensemble.run(bodies)))
            ]
            said = ", ".join(f"{row.mode} {row.tok_s:.0f} tokens/s" for row in pair)
            print(f"{streams} streams, {'round ' + str(number) if number else 'warm-up'}: {said}", flush=True)
            rows += pair if number else []
    return rows


def cases(text: str) -> list[tuple[int, float]]:
    """Reads streams and milliseconds per step: "16:4.5,64:6"."""
    return [
        (int(streams), float(step_ms))
        for streams, _, step_ms in (case.partition(":") for case in text.split(","))
    ]


def main() -> None:
    parser = command_line(__doc__, quick="a few short streams, one round: does it run at all?")
    parser.add_argument(
        "--streams",
        type=cases,
        help=f"how many at the same time, each with the milliseconds of a step; default {STREAMS}",
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds, num_tokens = (1, QUICK_TOKENS) if arguments.quick else (arguments.rounds, NUM_TOKENS)
    wanted = arguments.streams or cases(QUICK_STREAMS if arguments.quick else STREAMS)
    rows = [row for streams, step_ms in wanted for row in measure(streams, step_ms, num_tokens, rounds)]
    found = medians(rows, ("mode", "streams", "step_ms"))
    if arguments.json:
        write_result(arguments.json, {"rounds": rounds, "rows": found})
    for instance, ensemble in zip(found[::2], found[1::2], strict=True):
        share = ensemble["tok_s"] / instance["tok_s"]
        print(
            f"{instance['streams']} streams, steps of {instance['step_ms']} ms: through Triton {share:.2f} of"
            " the tokens per second"
        )
    print(table(found))


if __name__ == "__main__":
    main()
