"""The OpenVINO engine: runs step plans on a CPU through OpenVINO's compiled graph, with its attention over
our KV blocks.

The same description of a model, slot state and sampler as the torch engine, and faster on a small model; no
training, no device but the CPU. Owns the compiled model and the KV cache. A step's way is in
`stages.py` and `launching.py`. Called by the instance loop.
"""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import openvino as ov
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.kv.block_bytes import BlockBytes
from python_backends.engine.kv.kv_cache import BlockShape, rows_of_bytes
from python_backends.engine.launched_steps import LaunchedSteps
from python_backends.engine.model.limits import block_shape, declared_tokens, model_limits
from python_backends.engine.model.loading import facts_of, open_weights
from python_backends.engine.model.quantised import quantise_if_asked
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.openvino import BLOCK_TOKENS
from python_backends.engine.openvino.graph import TYPES, Graph, cache_name
from python_backends.engine.openvino.inputs import StepInputs
from python_backends.engine.openvino.known_fault import refuse_fault
from python_backends.engine.openvino.launching import OneAhead, OneByOne
from python_backends.engine.slots.slot_state import SlotState
from python_backends.guides.guides import Guides
from python_backends.nouns.request import Ids
from python_backends.nouns.step import StepOutput, StepPlan
from python_backends.settings import Settings, SettingsError

# Activations stay as they are beside int8 weights. Rounding 32 of them together, the plugin's default, makes
# products of integers, which are faster, but published models have single activations that are a thousand
# times as large as the others: what is beside these is lost (docs/notebook/cpu_steps.md).
ROUNDED_TOGETHER = 0


class OpenVINOEngine:
    plans_steps = False

    @torch.no_grad()
    def __init__(self, settings: Settings) -> None:
        _check(settings)
        torch.set_num_threads(1)  # sampling is all that torch does here, and two pools of threads fight
        facts = facts_of(settings)
        refuse_fault(settings, facts)
        self.limits = model_limits(settings, facts)
        weights = open_weights(settings, facts)
        description = describe(facts, weights, declared_tokens(settings, facts))
        graph = Graph(description, self.limits.max_model_tokens, self.limits.state_layer)
        whole = graph.build(quantise_if_asked(take_layers(facts, weights), settings.model.weights))
        self._shared = graph.shared
        del graph, description  # before the compiler and the KV blocks need memory
        shape = block_shape(settings, facts)
        self._compiled = _compiled(whole, shape, settings.engine.threads)
        self._state = state = SlotState(self.limits, torch.device("cpu"))
        requests = [self._compiled.create_infer_request() for _ in range(2 if settings.steps_ahead else 1)]
        self.kv_format, self.block_bytes = shape.kv_format, shape.num_bytes
        self._blocks = BlockBytes([rows_of_bytes(cache) for cache in self._give_caches(shape, requests)])
        self.export_blocks = self._blocks.read
        self._launched_steps = LaunchedSteps()
        self.on_done = self._launched_steps.on_done
        inputs = [StepInputs(request, state.dead_slot) for request in requests]
        self._launcher: OneByOne | OneAhead = (
            OneAhead(state, inputs, self._launched_steps) if settings.steps_ahead else OneByOne(state, inputs)
        )

    def follow(self, guides: Guides) -> None:
        self._state.follow(guides)

    def launch(self, plan: StepPlan) -> None:
        self._launcher.launch(plan)

    def collect(self) -> StepOutput:
        return self._launcher.collect()

    def close(self) -> None:
        self._launcher.close()
        self._launched_steps.stop()

    def import_blocks(self, blocks: Ids, data: memoryview | NDArray[Any]) -> None:
        """Raises ValueError if `data` has another size."""
        self._launched_steps.wait()
        self._blocks.write(blocks, data)

    def _give_caches(self, shape: BlockShape, requests: list[ov.InferRequest]) -> list[Tensor]:
        """Keys and values of every layer [blocks + 1 for padding, kv_heads,
        block_tokens, dim], as inputs that stay for good.
        """
        caches = []
        for layer, part in product(range(shape.num_layers), ("key", "value")):
            sizes = (self.limits.num_blocks + 1, shape.num_kv_heads, BLOCK_TOKENS, shape.head_dim)
            cache = torch.zeros(sizes, dtype=shape.dtype)  # torch writes the zeros: resident from the start
            bits = cache.view(torch.int16 if shape.dtype == torch.bfloat16 else shape.dtype).numpy()
            for request in requests:
                request.set_tensor(cache_name(layer, part), ov.Tensor(bits, list(sizes), TYPES[shape.dtype]))
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
        raise SettingsError(
            f"model.device = {settings.model.device!r}: engine.kind = 'openvino' runs on 'cpu'"
        )
    if settings.engine.block_tokens != BLOCK_TOKENS:
        raise SettingsError(
            f"engine.block_tokens = {settings.engine.block_tokens}: engine.kind = 'openvino' takes"
            f" {BLOCK_TOKENS}"
        )
