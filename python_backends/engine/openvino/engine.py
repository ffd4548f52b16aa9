"""The OpenVINO engine: runs step plans on a CPU through OpenVINO's compiled graph, with its attention over
our KV blocks.

The same description of a model, slot state and sampler as the torch engine, and faster on a small model; no
training, no device but the CPU. Owns the compiled model and the KV cache. Called by the instance loop.
Tested in tests/cpu/test_openvino.py.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.kv.block_bytes import BlockBytes
from python_backends.engine.kv.kv_cache import BlockShape, rows_of_bytes
from python_backends.engine.launched_steps import LaunchedSteps
from python_backends.engine.model.checkpoint import (
    block_shape,
    declared_tokens,
    load_model,
    model_limits,
    read_config,
)
from python_backends.engine.model.description import Model
from python_backends.engine.model.quantised import quantise_if_asked
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.openvino import fused_layer
from python_backends.engine.openvino.fused_graph import FusedGraph, FusedOperation
from python_backends.engine.openvino.graph import BLOCK_TOKENS, TYPES, Graph, cache_name
from python_backends.engine.openvino.inputs import StepInputs
from python_backends.engine.slots.log_probs import LogProbRows, log_probs, row_log_probs
from python_backends.engine.slots.sampler import GREEDY, SamplingRows, sample
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.step_timer import Seconds, StepTimer
from python_backends.nouns.request import Ids
from python_backends.nouns.step import Admit, RowLogProbs, StepOutput, StepPlan
from python_backends.settings import Settings, SettingsError

# With int8 weights, this many activations of a row are rounded to int8 with one scale, so that the processor
# multiplies integers; 0 leaves them as they are (slower: docs/notebook/cpu_steps.md). Rows are independent:
# the other rows of a batch change nothing.
ROUNDED_TOGETHER = 32

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Running:
    """A step that OpenVINO's threads compute."""

    number: int
    request: ov.InferRequest
    run: int  # the plan's
    slots: Tensor  # [sampled]
    rows: SamplingRows


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A step whose tokens are known and not booked."""

    step: _Running
    logits: Logits  # [sampled, vocabulary]; overwritten by the step after the next
    tokens: NDArray[np.int64]  # [sampled]
    times: Callable[[], Seconds]


class OpenVINOEngine:
    plans_steps = False

    @torch.no_grad()
    def __init__(self, settings: Settings) -> None:
        _check(settings)
        torch.set_num_threads(1)  # sampling is all that torch does here, and two pools of threads fight
        config = read_config(settings)
        self.limits = model_limits(settings, config)
        model = load_model(settings, config)
        description = describe(model, declared_tokens(settings, config))
        graph = _graph(settings, description, self.limits.max_model_tokens).build(
            quantise_if_asked(take_layers(model), settings.model.weights)
        )
        del model, description
        shape = block_shape(settings, config)
        compiled = _compiled(graph, shape, settings.engine.threads)
        self._ahead = settings.steps_ahead > 0
        self._life = 0  # of the block table: one more with every plan that has operations
        requests = [compiled.create_infer_request() for _ in range(1 + self._ahead)]
        self.state = SlotState(self.limits, torch.device("cpu"))
        # of the running step, and of the one before
        self._inputs = deque(StepInputs(each, self.state.dead_slot) for each in requests)
        self.kv_format, self.block_bytes = shape.kv_format, shape.num_bytes
        self._blocks = BlockBytes([rows_of_bytes(cache) for cache in self._give_caches(shape)])
        self.export_blocks = self._blocks.read
        self._steps = LaunchedSteps()  # that OpenVINO's threads compute while the loop goes on
        self.on_done = self._steps.on_done
        self._timer = StepTimer()
        self._running: _Running | None = None
        self._chosen: _Chosen | None = None
        self._last: _Chosen | None = None  # the newest, booked or not
        self._outputs: deque[StepOutput] = deque()
        self._done_s = 0.0  # when the running step was computed, known if steps are launched ahead
        if self._ahead:
            for request in requests:
                request.set_callback(self._computed, None)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Starts the step as soon as the one before it has its tokens. All
        that the start doesn't need is done after it.
        """
        self._inputs.rotate()
        inputs = self._inputs[0]
        self.state.apply_blocks(plan.operations)
        self._life += bool(plan.operations)
        is_new = inputs.fill(plan, self.state.table.numpy(), self._life)
        if not self._ahead:
            self._end_step()  # the only logits are about to be overwritten
        # booked while the step before still runs
        last_tokens = None if self._goes_on(plan) else self.state.last_tokens
        self._choose()
        self._start(inputs, plan, last_tokens)
        self._append()
        self.state.apply_lives(plan.operations)
        self._running = self._step(plan, inputs.request, is_new)

    @torch.inference_mode()
    def collect(self) -> StepOutput:
        if not self._outputs:
            self._end_step()
        return self._outputs.popleft()

    def close(self) -> None:
        self._choose()
        self._outputs.clear()
        self._steps.stop()

    def import_blocks(self, blocks: Ids, data: memoryview | NDArray[Any]) -> None:
        """Raises ValueError if `data` has another size."""
        self._steps.wait()
        self._blocks.write(blocks, data)

    def _step(self, plan: StepPlan, request: ov.InferRequest, is_new: bool) -> _Running:
        last = self._last and self._last.step
        if last and last.run == plan.run:
            rows = (
                last.rows
                if last.rows is GREEDY and not is_new
                else self.state.sampling_rows(last.slots, plan)
            )
            return _Running(plan.number, request, plan.run, last.slots, rows)
        slots = torch.from_numpy(plan.slots[plan.samples].astype(np.int64))
        return _Running(plan.number, request, plan.run, slots, self.state.sampling_rows(slots, plan))

    def _goes_on(self, plan: StepPlan) -> bool:
        """With the very rows of the step before."""
        before = self._running or (self._last.step if self._last else None)
        return before is not None and before.run == plan.run

    def _start(self, inputs: StepInputs, plan: StepPlan, last_tokens: NDArray[np.int64] | None) -> None:
        if last_tokens is None:
            assert self._last is not None, "rows go on that have no tokens yet"
            inputs.put_tokens(self._last.tokens)
        else:
            if self._chosen is not None:
                last_tokens[self._chosen.step.slots.numpy()] = self._chosen.tokens  # before they are booked
            for admit in plan.operations:  # a request that has moved here decodes in the plan that admits it
                if isinstance(admit, Admit) and len(admit.tokens):
                    last_tokens[admit.slot] = admit.tokens[-1]
            inputs.put_tokens(last_tokens[plan.slots[: plan.num_decodes]])
        self._timer.begin()
        if self._ahead:
            self._steps.launched()
            inputs.request.start_async()
        else:
            inputs.request.infer()  # this thread computes too

    def _end_step(self) -> None:
        self._choose()
        self._append()

    def _choose(self) -> None:
        """Waits for the running step and chooses its tokens; the next one may start then."""
        if self._running is None:
            return
        step, self._running = self._running, None
        with self._steps.awaited():
            step.request.wait()
        woken_s = time.monotonic()
        logits = step.request.get_output_tensor(0).data[: len(step.slots)]
        tokens = (
            logits.argmax(-1) if step.rows is GREEDY else sample(torch.from_numpy(logits), step.rows).numpy()
        )
        late_s = woken_s - self._done_s if self._ahead else 0.0  # nothing was computed and no token chosen
        self._last = self._chosen = _Chosen(step, logits, tokens, self._timer.end(time.monotonic() - late_s))

    def _computed(self, _: object) -> None:
        """Called by a thread of OpenVINO's."""
        self._done_s = time.monotonic()
        self._steps.ended()

    def _append(self) -> None:
        """Books the tokens that were chosen last, and makes the output of their step."""
        if self._chosen is None:
            return
        done, self._chosen = self._chosen, None
        step, scores = done.step, None
        if step.rows is GREEDY:
            tokens, finishes = self.state.append_plain(step.run, step.slots, done.tokens)
        else:
            chosen = torch.from_numpy(done.tokens)
            scores = _scores(torch.from_numpy(done.logits), chosen, step.rows.asks)
            tokens, finishes = (values.numpy() for values in self.state.append(step.slots, chosen))
        busy_s, gap_s = done.times()
        self._outputs.append(
            StepOutput(step.number, tokens.astype(np.int32), finishes.astype(np.uint8), scores, busy_s, gap_s)
        )

    def _give_caches(self, shape: BlockShape) -> list[Tensor]:
        """Keys and values of every layer [blocks + 1 for padding, kv_heads,
        block_tokens, dim], as inputs that stay for good.
        """
        caches = []
        for layer, part in product(range(shape.num_layers), ("key", "value")):
            sizes = (self.limits.num_blocks + 1, shape.num_kv_heads, BLOCK_TOKENS, shape.head_dim)
            cache = torch.zeros(sizes, dtype=shape.dtype)  # torch writes the zeros: resident from the start
            bits = cache.view(torch.int16 if shape.dtype == torch.bfloat16 else shape.dtype).numpy()
            for inputs in self._inputs:
                inputs.request.set_tensor(
                    cache_name(layer, part), ov.Tensor(bits, list(sizes), TYPES[shape.dtype])
                )
            caches.append(cache)
        return caches


def _scores(logits: Tensor, tokens: Tensor, asks: LogProbRows | None) -> RowLogProbs | None:
    return None if asks is None else row_log_probs(log_probs(logits, tokens, asks).numpy(), asks.host_rows)


def _graph(settings: Settings, model: Model, num_positions: int) -> Graph:
    wanted = settings.engine.fused_layers == "on" and settings.model.dtype == "bfloat16"
    library = fused_layer.library() if wanted else None
    return (
        Graph(model, num_positions)
        if library is None
        else FusedGraph(model, num_positions, FusedOperation(library))
    )


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
        raise SettingsError(
            f"model.device = {settings.model.device!r}: engine.kind = 'openvino' runs on 'cpu'"
        )
    if settings.engine.block_tokens != BLOCK_TOKENS:
        raise SettingsError(
            f"engine.block_tokens = {settings.engine.block_tokens}: engine.kind = 'openvino' takes"
            f" {BLOCK_TOKENS}"
        )
