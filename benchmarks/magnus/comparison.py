"""The parts that all runs of `magnus` share: requests with their lengths and features, engines with the
same memory, limits of batches.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.bundled_prompts import MODEL
from benchmarks.magnus.prediction import BatchSeconds, Lengths, features_of, observations, root_mean_square
from benchmarks.magnus.requests import answer_lengths, asks
from benchmarks.magnus.runs import (
    Run,
    Work,
    measure_batches,
    poisson_arrivals,
    run_continuous,
    run_static,
    step_times_ms,
)
from benchmarks.magnus.simulated import SimulatedEngine, lengths_by_prompt
from benchmarks.magnus.static_batching.batch_time import RELEARN_EVERY_S as BATCHES_EVERY_S
from benchmarks.magnus.static_batching.batches import BatchLimits, safe_size
from python_backends.engine.protocol import Engine
from python_backends.instance.build import build
from python_backends.nouns.request import ModelLimits
from python_backends.prediction.forest import grow
from python_backends.settings import EngineSettings, ModelSettings, Settings

MAX_PROMPT_TOKENS, MAX_TOKENS = 256, 256  # the longest request; the second is the door's own default
BLOCK_TOKENS = 32
BLOCKS_A_REQUEST = -(-(MAX_PROMPT_TOKENS + MAX_TOKENS) // BLOCK_TOKENS)
MAX_ROWS = 96
LENGTHS_EVERY_S = 180.0
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
POLICIES = ("vs", "vsq", "ccb", "glp", "abp", "magnus")
PREDICTING = ("glp", "abp", "magnus")


class Engines:
    """Two engines: one with the model's own weights, and one with int8 weights and KV blocks in the memory
    that these save.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.plain = self._make(arguments.vs_size * BLOCKS_A_REQUEST, "same")
        self.quantised = self.plain
        if "vsq" in arguments.only:
            self.quantised = self._make(
                arguments.vs_size * BLOCKS_A_REQUEST + blocks_saved_by_int8(arguments.dtype), "int8"
            )

    def of(self, policy: str) -> Engine:
        return self.quantised if policy == "vsq" else self.plain

    def _make(self, num_blocks: int, weights: str) -> Engine:
        given = self._arguments
        model = ModelSettings(
            str(MODEL), given.dtype, weights, max_model_tokens=MAX_PROMPT_TOKENS + MAX_TOKENS
        )
        slots = min(MAX_ROWS, num_blocks)
        engine = EngineSettings("torch", slots, BLOCK_TOKENS, num_blocks, threads=given.threads)
        return build(Settings(model, engine))[1]


def blocks_saved_by_int8(dtype: str) -> int:
    """Returns the KV blocks in the memory that int8 weights of the layers save compared with `dtype`."""
    from safetensors import safe_open

    with safe_open(MODEL / "model.safetensors", "np") as file:
        names = [name for name in file.keys() if ".layers." in name]  # noqa: SIM118
        shapes = [file.get_slice(name).get_shape() for name in names]
        keys = int(file.get_slice("model.layers.0.self_attn.k_proj.weight").get_shape()[0])
    size, layers = ITEM_BYTES[dtype], len({name.split(".")[2] for name in names})
    saved = sum(int(np.prod(shape)) for shape in shapes if len(shape) == 2) * (size - 1)
    return saved // (layers * 2 * keys * size * BLOCK_TOKENS)


class Comparison:
    def __init__(self, arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
        self._pool, self._arguments = pool, arguments
        self._engines = Engines(arguments)
        plain, num_training = self._engines.plain, arguments.training
        asked = asks(num_training + arguments.requests, MAX_PROMPT_TOKENS, arguments.cache)
        self.training, self.asked = asked[:num_training], asked[num_training:]
        known = asked if arguments.simulate else self.training
        lengths = answer_lengths(known, plain, MAX_TOKENS, arguments.cache)
        self.lengths = lengths[:num_training]
        made, self.encode_s = features_of(asked, arguments.cache)
        self._seen = observations(self.training, made[:num_training], self.lengths, MAX_TOKENS)
        nothing: NDArray[np.int64] = np.zeros(len(self.asked), np.int64)
        self._features = observations(self.asked, made[num_training:], nothing, MAX_TOKENS)
        print("growing the forest", flush=True)
        self._forest = pool.submit(grow, self._seen).result()
        self._work = Work(self.training, np.zeros(num_training), 0.0, MAX_TOKENS)
        self._learns_s = LENGTHS_EVERY_S * arguments.time_scale
        if arguments.simulate:
            plain = self._simulate(lengths_by_prompt(asked, lengths))
            self._learns_s = float("inf")  # a forest grows in real time
        self.steps_ms = step_times_ms(self._work, plain)
        self._measured = measure_batches(self._work, self.lengths, plain, self._limits(plain.limits))

    def capacity(self) -> float:
        """Returns the requests per second of VS when all requests wait from the start."""
        engine = self._engines.plain
        asked = self.asked[: 20 * self._limits(engine.limits).fixed_size]
        work = replace(self._work, asked=asked, arrivals_s=np.zeros(len(asked)))
        return run_static("vs", "vs", work, engine, self._limits(engine.limits), None).row.request_throughput

    def run(self, policy: str, rate: float) -> tuple[Run, dict[str, Any]]:
        """Returns a run and the errors of its predictions."""
        arrivals_s = poisson_arrivals(len(self.asked), rate, self._arguments.seed)
        work, engine = (
            replace(self._work, asked=self.asked, arrivals_s=arrivals_s, rate=rate),
            self._engines.of(policy),
        )
        limits = self._limits(engine.limits)
        if policy == "ccb":
            return run_continuous(policy, work, engine, limits.fixed_size), {}
        if policy not in PREDICTING:
            return run_static(policy, "vs", work, engine, limits, None), {}
        scale = self._arguments.time_scale
        lengths = Lengths(self._seen, self._forest, self._features, self._pool, self._learns_s)
        seconds = BatchSeconds(self._measured, BATCHES_EVERY_S * scale, scale)
        run = run_static(policy, policy, work, engine, limits, (lengths, seconds))
        lengths.finish()
        return run, {
            "policy": policy,
            "rate": rate,
            "length_rmse_tokens": root_mean_square(lengths.errors_tokens),
            "lengths_relearned": lengths.num_relearned,
            "batch_time_rmse_s": root_mean_square(seconds.errors_s),
            "batch_times_relearned": seconds.num_relearned,
        }

    def _simulate(self, lengths: dict[bytes, int]) -> Engine:
        """Replaces the real engines by simulated ones with the same memory and a virtual clock."""
        step_ms = self._arguments.simulate
        engine = SimulatedEngine(self._engines.plain.limits, lengths, step_ms)
        self._engines.plain, self._work = engine, replace(self._work, now=engine.now)
        return engine

    def _limits(self, limits: ModelLimits) -> BatchLimits:
        size = safe_size(limits.num_blocks, limits.block_tokens, MAX_PROMPT_TOKENS + MAX_TOKENS)
        return BatchLimits(
            limits.num_blocks, limits.block_tokens, limits.num_slots, size, self._arguments.max_waste
        )
