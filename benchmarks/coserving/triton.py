"""The part of `coserving` through Triton: a real server, requests over HTTP, with a job and
without, in turn.

Training leaves no processor idle, so Triton's processes, which tokenize and detokenize, and the client on the
same processors have less than without it.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.common.http_streams import EnsembleStreams
from benchmarks.common.models import VOCABULARY, num_tokens, text_of
from benchmarks.common.work import Timing, Work
from benchmarks.coserving.counts import Marks
from benchmarks.coserving.report import figures
from benchmarks.coserving.requests import Arrivals, Times, arrivals, seen
from benchmarks.coserving.specs import MAX_MODEL_TOKENS, SLOTS, Model, endless_job
from python_backends.finetuning.jobs import Job, jobs_directory
from python_backends.settings import ROOT, load
from tests.support.server.serving import Gapless, wait_for

CONNECTIONS = 64
LOOK_S = 0.1  # how often the losses of a job are read
START_S, END_S = 120.0, 60.0  # most seconds until a job has made its first step, and until it has ended
MOST_AFTER_S = 2.0  # in which more requests come after the window


def through_triton(
    model: Model, loads: dict[str, float], slo_s: float, times: Times, rounds: int
) -> list[dict[str, Any]]:
    """A row for each load, round and way, with a job and without. `loads`: output tokens a second that
    requests ask for, by name.
    """
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        given = {
            "model.directory": str(model.directory),
            "model.dtype": model.dtype,
            "model.max_model_tokens": str(MAX_MODEL_TOKENS),
            "engine.kind": "torch",
            "engine.slots": str(SLOTS),
            "scheduling.late_token_ms": str(slo_s * 1e3),
            "finetuning.directory": directory,
        }
        jobs = jobs_directory(load(ROOT / "gapless.toml", given))
        server = stack.enter_context(Gapless(**given))
        streams = EnsembleStreams(
            server.http_port, CONNECTIONS, lambda event: num_tokens(event["text_output"])
        )
        stack.callback(streams.close)
        short = Times(0.0, times.settle_s, times.window_s, MOST_AFTER_S)
        rows = []
        for number in range(rounds):
            for name, tokens_s in loads.items():
                asked = arrivals(tokens_s, short, VOCABULARY, number)
                for with_job in (True, False) if number % 2 else (False, True):
                    row = one(streams, asked, short, jobs if with_job else None, slo_s)
                    rows.append({"load": name, "round": number, "job": with_job} | row)
                    tqdm.write(f"through Triton, {rows[-1]}")
        return rows


def one(
    streams: EnsembleStreams, asked: Arrivals, times: Times, jobs: Path | None, slo_s: float
) -> dict[str, Any]:
    """Serves the requests; while a new job in `jobs` is trained, if that is not None."""
    texts = [text_of(job.prompt) for job in asked.jobs]
    with trained(jobs) if jobs is not None else contextlib.nullcontext() as watch:
        began_s = time.perf_counter()
        timings: list[Timing] = streams.ask(texts, Work(asked.jobs, CONNECTIONS), asked.due_s)
    begin_s = began_s + times.settle_s
    end_s = begin_s + times.window_s
    found = figures(seen(timings, timings[slice(*asked.measured)], begin_s, end_s), slo_s)
    marks = watch.marks if watch is not None else None
    return {"trained_tok_s": marks.rates(begin_s, end_s)[1] if marks else 0.0} | found


class Watch:
    """Reads how far a job is, in a thread: whole steps only."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._marks: list[tuple[float, float]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    @property
    def marks(self) -> Marks:
        times_s, tokens = ([mark[i] for mark in self._marks] for i in (0, 1))
        return Marks(times_s, tokens, tokens)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_S):
            tokens = float(sum(line["tokens"] for line in self._job.losses))
            if not self._marks or tokens != self._marks[-1][1]:
                self._marks.append((time.perf_counter(), tokens))


@contextlib.contextmanager
def trained(jobs: Path) -> Iterator[Watch]:
    """Submits a job, which has made its first step when the block begins, and is cancelled after it."""
    job = endless_job(jobs)
    wait_for(lambda: job.losses, START_S)
    watch = Watch(job)
    try:
        yield watch
    finally:
        watch.close()
        job.cancel()
        wait_for(lambda: Job(job.directory).status == "cancelled", END_S)
