"""The OpenVINO engine: runs step plans on a CPU through OpenVINO's compiled graph, with its attention over our KV blocks.

The same description of a model, slot state and sampler as the torch engine, and twice its pace on a small model; no training, no
device but the CPU. Owns the compiled model and the KV cache. Called by the instance loop.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import product

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.config import Settings, SettingsError
from python_backends.engine.checkpoint import block_shape, declared_tokens, load_model, model_limits, read_config
from python_backends.engine.kv_cache import BlockShape
from python_backends.engine.log_probs import log_probs, row_log_probs
from python_backends.engine.openvino_graph import BLOCK_TOKENS, STEP_INPUTS, TYPES, build_graph, cache_name
from python_backends.engine.quantised import kept
from python_backends.engine.sampler import sample
from python_backends.engine.slot_state import SlotState
from python_backends.engine.weights import describe, take_layers
from python_backends.request import Ids
from python_backends.step import StepOutput, StepPlan

# Beside int8 weights, so many activations of a row are rounded to int8 with one scale, so that the processor multiplies integers;
# 0 leaves them as they are, at 1.2 to 1.9 times the time of a decode step's products. Each row goes by itself: company changes nothing.
ROUNDED_TOGETHER = 32

Arrays = dict[str, NDArray[np.int32]]


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
        self._request = _compiled(graph, shape, settings.engine.threads).create_infer_request()
        self._caches = self._give_caches(shape)
        self.state = SlotState(self.limits, torch.device("cpu"))
        self._outputs: deque[StepOutput] = deque()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        self.state.apply(plan.operations)
        slots = torch.from_numpy(plan.slots[plan.samples].astype(np.int64))
        logits = self._logits(self._inputs(plan)) if len(plan.slots) else None
        if logits is None or not len(slots):
            self._outputs.append(StepOutput(plan.number, np.zeros(0, np.int32), np.zeros(0, np.uint8)))
            return
        rows = self.state.sampling_rows(slots, plan)
        chosen = sample(logits, rows)
        scores = row_log_probs(log_probs(logits, chosen, rows.asks).numpy(), rows.asks.host_rows) if rows.asks is not None else None
        tokens, finishes = self.state.append(slots, chosen)
        self._outputs.append(StepOutput(plan.number, tokens.numpy().astype(np.int32), finishes.numpy().astype(np.uint8), scores))

    def collect(self) -> StepOutput:
        return self._outputs.popleft()

    def close(self) -> None:
        self._outputs.clear()

    def _logits(self, inputs: Arrays) -> Tensor:
        """[sampled, vocabulary] float32; overwritten by the next step."""
        for name in STEP_INPUTS:
            self._request.set_tensor(name, ov.Tensor(inputs[name]))
        self._request.infer()
        return torch.from_numpy(self._request.get_output_tensor(0).data)

    def _inputs(self, plan: StepPlan) -> Arrays:
        """Spans stand in the order of the plan: decode rows, whose tokens and positions the slot state has, then chunks of prompts."""
        count = plan.num_decodes
        last_tokens, positions = self.state.decode_inputs(torch.from_numpy(plan.slots[:count].astype(np.int64)))
        starts = np.concatenate([positions.numpy(), plan.starts[count:]])
        ends = np.cumsum(plan.lengths)
        offsets = np.arange(ends[-1]) - np.repeat(ends - plan.lengths, plan.lengths)
        blocks, begins = self._blocks(plan.slots, starts + plan.lengths)
        arrays = {
            "tokens": np.concatenate([last_tokens.numpy(), plan.tokens]),
            "positions": np.repeat(starts, plan.lengths) + offsets,
            "past_lens": starts,
            "subsequence_begins": np.concatenate([[0], ends]),
            "block_indices": blocks,
            "block_indices_begins": begins,
            "max_context_len": (starts + plan.lengths).max(),
            "sampling_rows": ends[plan.samples] - 1 if plan.samples.any() else np.zeros(1),
        }
        return {name: np.asarray(values, np.int32) for name, values in arrays.items()}

    def _blocks(self, slots: Ids, num_tokens: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
        """The blocks that hold the first `num_tokens` [spans] of each slot, one after the other, and where each span's begin."""
        counts = -(-num_tokens // BLOCK_TOKENS)
        rows = self.state.table.numpy()[slots, : counts.max()]
        return rows[np.arange(rows.shape[1]) < counts[:, None]], np.concatenate([[0], np.cumsum(counts)])

    def _give_caches(self, shape: BlockShape) -> list[Tensor]:
        """Keys and values of every layer [blocks, kv_heads, block_tokens, dim], as inputs that stay for good."""
        caches = []
        for layer, part in product(range(shape.num_layers), ("key", "value")):
            sizes = (self.limits.num_blocks, shape.num_kv_heads, BLOCK_TOKENS, shape.head_dim)
            cache = torch.zeros(sizes, dtype=shape.dtype)  # untouched blocks cost no memory
            bits = cache.view(torch.int16 if shape.dtype == torch.bfloat16 else shape.dtype).numpy()
            self._request.set_tensor(cache_name(layer, part), ov.Tensor(bits, list(sizes), TYPES[shape.dtype]))
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
