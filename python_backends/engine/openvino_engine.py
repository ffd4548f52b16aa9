"""The OpenVINO engine: runs step plans on a CPU through OpenVINO's compiled graph, with its attention over our KV blocks.

The same description of a model, slot state and sampler as the torch engine, and faster on a small model; no training, no device but
the CPU. Owns the compiled model and the KV cache. Called by the instance loop.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import openvino as ov
import torch
from torch import Tensor

from python_backends.config import Settings, SettingsError
from python_backends.engine.checkpoint import block_shape, declared_tokens, load_model, model_limits, read_config
from python_backends.engine.kv_cache import BlockShape
from python_backends.engine.log_probs import log_probs, row_log_probs
from python_backends.engine.openvino_graph import BLOCK_TOKENS, TYPES, build_graph, cache_name
from python_backends.engine.openvino_inputs import StepInputs
from python_backends.engine.quantised import kept
from python_backends.engine.sampler import SamplingRows, sample
from python_backends.engine.slot_state import SlotState
from python_backends.engine.step_timer import Seconds, StepTimer
from python_backends.engine.weights import describe, take_layers
from python_backends.step import StepOutput, StepPlan

# Beside int8 weights, so many activations of a row are rounded to int8 with one scale, so that the processor multiplies integers;
# 0 leaves them as they are, at 1.2 to 1.9 times the time of a decode step's products. Each row goes by itself: company changes nothing.
ROUNDED_TOGETHER = 32


@dataclass(frozen=True, slots=True)
class _Running:
    """A step that OpenVINO's threads compute."""

    number: int
    request: ov.InferRequest
    slots: Tensor  # [sampled]
    rows: SamplingRows


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A step whose tokens are known and not booked."""

    step: _Running
    logits: Tensor  # [sampled, vocabulary]; overwritten by the step after the next
    tokens: Tensor  # [sampled]
    times: Callable[[], Seconds]


class OpenVINOEngine:
    @torch.no_grad()
    def __init__(self, settings: Settings) -> None:
        _check(settings)
        torch.set_num_threads(1)  # sampling is all that torch does here, and two pools of threads fight
        config = read_config(settings)
        self.limits = model_limits(settings, config)
        model = load_model(settings, config)
        description = describe(model, declared_tokens(settings, config))
        graph = build_graph(description, kept(take_layers(model), settings.model.weights), self.limits.max_model_tokens)
        del model, description
        shape = block_shape(settings, config)
        compiled = _compiled(graph, shape, settings.engine.threads)
        self._ahead = settings.steps_ahead > 0
        requests = [compiled.create_infer_request() for _ in range(1 + self._ahead)]
        self._inputs = deque(map(StepInputs, requests))  # of the running step, and of the one before
        self._caches = self._give_caches(shape)
        self.state = SlotState(self.limits, torch.device("cpu"))
        self._timer = StepTimer()
        self._running: _Running | None = None
        self._chosen: _Chosen | None = None
        self._outputs: deque[StepOutput] = deque()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Starts the step as soon as the one before it has its tokens. All that the start doesn't need is done behind it."""
        self._inputs.rotate()
        inputs, is_early = self._inputs[0], self._ahead and not plan.operations
        if is_early:
            inputs.fill(plan, self.state.table.numpy())
        self._choose()
        if not is_early:
            self._append()
            self.state.apply(plan.operations)
            inputs.fill(plan, self.state.table.numpy())
        self._start(plan, inputs)
        self._append()
        rows = self.state.sampling_rows(inputs.sampled, plan)
        self._running = _Running(plan.number, inputs.request, inputs.sampled, rows)

    @torch.inference_mode()
    def collect(self) -> StepOutput:
        if not self._outputs:
            self._choose()
            self._append()
        return self._outputs.popleft()

    def close(self) -> None:
        self._choose()
        self._outputs.clear()

    def _start(self, plan: StepPlan, inputs: StepInputs) -> None:
        inputs.put_tokens(self.state.last_tokens[plan.slots[: plan.num_decodes]])
        self._timer.begin()
        if self._ahead:
            inputs.request.start_async()
        else:
            inputs.request.infer()  # this thread computes too

    def _choose(self) -> None:
        """Waits for the running step and chooses its tokens; the next one may start then."""
        if self._running is None:
            return
        step, self._running = self._running, None
        step.request.wait()
        logits = torch.from_numpy(step.request.get_output_tensor(0).data)  # [sampled, vocabulary] float32
        chosen = sample(logits[: len(step.slots)], step.rows)
        self.state.last_tokens[step.slots.numpy()] = chosen.numpy()
        self._chosen = _Chosen(step, logits, chosen, self._timer.end())

    def _append(self) -> None:
        """Books the tokens that were chosen last, and makes the output of their step."""
        if self._chosen is None:
            return
        done, self._chosen = self._chosen, None
        step, asks = done.step, done.step.rows.asks
        scores = None if asks is None else row_log_probs(log_probs(done.logits, done.tokens, asks).numpy(), asks.host_rows)
        tokens, finishes = (values.numpy() for values in self.state.append(step.slots, done.tokens))
        busy_s, gap_s = done.times()
        self._outputs.append(StepOutput(step.number, tokens.astype(np.int32), finishes.astype(np.uint8), scores, busy_s, gap_s))

    def _give_caches(self, shape: BlockShape) -> list[Tensor]:
        """Keys and values of every layer [blocks, kv_heads, block_tokens, dim], as inputs that stay for good."""
        caches = []
        for layer, part in product(range(shape.num_layers), ("key", "value")):
            sizes = (self.limits.num_blocks, shape.num_kv_heads, BLOCK_TOKENS, shape.head_dim)
            cache = torch.zeros(sizes, dtype=shape.dtype)  # untouched blocks cost no memory
            bits = cache.view(torch.int16 if shape.dtype == torch.bfloat16 else shape.dtype).numpy()
            for inputs in self._inputs:
                inputs.request.set_tensor(cache_name(layer, part), ov.Tensor(bits, list(sizes), TYPES[shape.dtype]))
            caches.append(cache)
        return caches


def _compiled(graph: ov.Model, shape: BlockShape, threads: int) -> ov.CompiledModel:
    precision = TYPES[shape.dtype].to_string()
    options = {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
        "INFERENCE_NUM_THREADS": threads or len(os.sched_getaffinity(0)),
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # Triton's processes want the same processors
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": ROUNDED_TOGETHER,
    }
    return ov.Core().compile_model(graph, "CPU", options)


def _check(settings: Settings) -> None:
    if settings.model.device != "cpu":
        raise SettingsError(f"model.device = {settings.model.device!r}: engine.kind = 'openvino' runs on 'cpu'")
    if settings.engine.block_tokens != BLOCK_TOKENS:
        raise SettingsError(f"engine.block_tokens = {settings.engine.block_tokens}: engine.kind = 'openvino' takes {BLOCK_TOKENS}")
