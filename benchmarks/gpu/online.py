"""The online work of TensorRT-LLM's published table (v0.14, Llama-3.1-8B, bf16, one H200, behind Triton): 500
requests of 467/256 and 202/214 tokens, all at once and 8 per second; through Gapless's loop in process,
through real Triton, and through transformers' continuous batching. Called by `gpu`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.clients import Clients, jobs_of, requests_of
from benchmarks.common.http_streams import EnsembleStreams
from benchmarks.common.models import text_of
from benchmarks.common.work import Job, Timing, Work
from benchmarks.gpu.continuous_batching import ContinuousBatching, page_of
from benchmarks.gpu.model import STEPS_AHEAD, Measured
from benchmarks.gpu.report import Figure, LeftOutError
from python_backends.instance.build import build
from python_backends.instance.loop import Instance
from python_backends.linux.free_ports import free_ports
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import ROOT

NUM_REQUESTS, PACED_REQUESTS, PEER_REQUESTS, QUICK_REQUESTS = 500, 200, 200, 8
RATE = 8.0  # requests a second
MAX_TOKENS = 768
READY_S = 120.0
PAGE_TOKENS = 32  # of transformers' cache
BURST_SLOTS, QUICK_SLOTS = 512, 4
TOKEN_BUDGET = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    num_input: int
    num_output: int
    tok_s: int  # of the published table, all at once

    @property
    def name(self) -> str:
        return f"{self.num_input}/{self.num_output}"


SHAPES = (Shape(467, 256, 10_121), Shape(202, 214, 9_189))
FIRST_MS, BETWEEN_MS = 24, 7  # of the published table, 467/256 at 8 a second
QUICK_SHAPES = (Shape(24, 12, 0),)


def online(measured: Measured) -> Iterator[Figure]:
    settings = measured.settings(slots_of(measured), 64 if measured.quick else MAX_TOKENS, TOKEN_BUDGET)
    _, engine = build(settings)
    for shape in shapes_of(measured):
        for paced in (False, True):
            jobs, due_s = work_of(measured, shape, paced)
            clients = Clients(requests_of(jobs), due_s)
            scheduler = SlotScheduler(engine.limits, TOKEN_BUDGET)  # a new one, so that no prefix is found
            instance = Instance(scheduler, engine, clients, lambda _: None, STEPS_AHEAD)
            while not clients.is_done:
                instance.turn()
            yield from figures("online, in process", measured, shape, paced, clients.timings)


def triton(measured: Measured) -> Iterator[Figure]:
    served = Served(
        {
            "model.directory": measured.directory,
            "model.random_weights": "true",
            "model.dtype": "bfloat16",
            "model.device": measured.device,
            "model.max_model_tokens": 64 if measured.quick else MAX_TOKENS,
            "engine.slots": slots_of(measured),
            "engine.token_budget": TOKEN_BUDGET,
            "engine.kv_memory_gib": measured.kv_gib,
            "engine.cuda_graphs": measured.cuda_graphs,
        }
    )
    try:
        count = QUICK_REQUESTS if measured.quick else NUM_REQUESTS
        streams = EnsembleStreams(
            served.port, count, lambda event: len(event["text_output"]) // measured.letters
        )
        with closing(streams):
            yield from _through_triton(measured, streams)
    finally:
        served.stop()


def _through_triton(measured: Measured, streams: EnsembleStreams) -> Iterator[Figure]:
    for shape in shapes_of(measured):
        for paced in (False, True):
            jobs, due_s = work_of(measured, shape, paced)
            texts = [text_of(job.prompt, measured.letters) for job in jobs]
            yield from figures(
                "online, through Triton",
                measured,
                shape,
                paced,
                streams.ask(texts, Work(jobs, len(jobs)), due_s),
            )


def transformers(measured: Measured) -> Iterator[Figure]:
    """transformers' continuous batching, with fewer requests: its own loop on its own thread, unchanged."""
    shape = shapes_of(measured)[0]
    peer = _ContinuousBatching(measured, shape)
    jobs = work_of(measured, shape, paced=False)[0][:PEER_REQUESTS]
    yield from figures("transformers", measured, shape, False, peer.run(jobs))


def shapes_of(measured: Measured) -> tuple[Shape, ...]:
    return QUICK_SHAPES if measured.quick else SHAPES


def slots_of(measured: Measured) -> int:
    return QUICK_SLOTS if measured.quick else BURST_SLOTS


def work_of(measured: Measured, shape: Shape, paced: bool) -> tuple[list[Job], list[float]]:
    """Returns requests of exactly the shape's lengths, and when each arrives. Prompts differ from those of
    earlier calls, so that no prefix is found.
    """
    count = QUICK_REQUESTS if measured.quick else PACED_REQUESTS if paced else NUM_REQUESTS
    lengths = (shape.num_input, shape.num_input), (shape.num_output, shape.num_output)
    jobs = jobs_of(count, measured.vocabulary, *lengths, seed=2 * shape.num_input + paced)
    return jobs, [number / RATE * paced for number in range(count)]


def figures(
    part: str, measured: Measured, shape: Shape, paced: bool, timings: list[Timing]
) -> Iterator[Figure]:
    """Yields the figures. Tokens of one piece have the same time: all but the first took no time."""
    wrong = sum(len(timing.tokens) != shape.num_output for timing in timings)
    assert not wrong, f"{wrong} of {len(timings)} answers have another length than {shape.num_output}"
    wall_s = max(timing.ended for timing in timings) - min(timing.submitted for timing in timings)
    first_ms = np.array([timing.tokens[0] - timing.submitted for timing in timings]) * 1e3
    between_ms = np.concatenate([np.diff(timing.tokens) for timing in timings]) * 1e3
    how = f"{shape.name} {f'{RATE:.0f} a second' if paced else 'at once'}"
    ours, published = not part.startswith("transformers"), not measured.quick
    wanted = f">= {shape.tok_s}" if published and ours and not paced else ""
    yield Figure(
        part, f"{how}: output", sum(len(timing.tokens) for timing in timings) / wall_s, "tokens/s", wanted
    )
    bounds = (
        (f"<= {FIRST_MS}", f"<= {BETWEEN_MS}")
        if published and ours and paced and shape == SHAPES[0]
        else ("", "")
    )
    quantiles = [
        f"p50 {np.percentile(values, 50):.4g}, p99 {np.percentile(values, 99):.4g}"
        for values in (first_ms, between_ms)
    ]
    yield Figure(
        part, f"{how}: to the first token, mean", float(first_ms.mean()), "ms", bounds[0], quantiles[0]
    )
    yield Figure(
        part, f"{how}: between tokens, mean", float(between_ms.mean()), "ms", bounds[1], quantiles[1]
    )


class Served:
    """Launcher, Triton and instance, as a user starts them, with these settings."""

    def __init__(self, settings: dict[str, Any]) -> None:
        wheel = Path(sysconfig.get_path("purelib")) / "pytriton/tritonserver"
        if not wheel.exists() and not Path("/opt/tritonserver").exists():
            raise LeftOutError(
                "no tritonserver here: neither the wheel nvidia-pytriton nor /opt/tritonserver"
            )
        self.port, grpc_port, metrics_port = free_ports(3)
        ports = {
            "server.http_port": self.port,
            "server.grpc_port": grpc_port,
            "server.metrics_port": metrics_port,
            "front.port": 0,
        }
        command = [sys.executable, "-m", "commands.serve"]
        for name, value in (settings | ports).items():
            command += ["--set", f"{name}={value}"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._wait()

    def _wait(self) -> None:
        """Waits until the launcher prints that it serves; copies its log to this process's."""
        ready = threading.Event()

        def read() -> None:
            for line in self._process.stdout or []:
                if "Ctrl-C ends it" in line:
                    ready.set()

        threading.Thread(target=read, daemon=True).start()
        began_s = time.monotonic()
        while not ready.wait(0.2):
            if self._process.poll() is not None or time.monotonic() - began_s > READY_S:
                self.stop()
                raise RuntimeError(f"Gapless did not serve within {READY_S:.0f} s; its log is above")

    def stop(self) -> None:
        for number, patience_s in ((signal.SIGINT, 15), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            if self._process.poll() is None:
                self._process.send_signal(number)
                try:
                    self._process.wait(patience_s)
                except subprocess.TimeoutExpired:
                    continue


class _ContinuousBatching:
    def __init__(self, measured: Measured, shape: Shape) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig

        with torch.device(measured.device):
            model = AutoModelForCausalLM.from_config(
                AutoConfig.from_pretrained(measured.directory), dtype=torch.bfloat16
            ).eval()
        self._slots = slots_of(measured)
        pages = -(-(shape.num_input + shape.num_output) // PAGE_TOKENS)
        batching = ContinuousBatchingConfig(
            **page_of(PAGE_TOKENS),
            num_blocks=self._slots * pages,
            max_batch_tokens=256 if measured.quick else TOKEN_BUDGET,
            max_requests_per_batch=self._slots,
            allow_block_sharing=False,
        )
        self._batching = ContinuousBatching(model, batching)

    def run(self, jobs: list[Job]) -> list[Timing]:
        timings = self._batching.run(Work(jobs, len(jobs)))
        self._batching.stop()
        return timings
