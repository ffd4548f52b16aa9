"""The torch engine: runs step plans with PyTorch's own operators, on a CPU or a CUDA device by the same code;
on a CPU with layers in C++ where these compute the model (`engine/cpu`).

Owns model, KV cache and slot state; decides nothing. `launch` puts a whole step on the device (batch, forward
pass, sampling, append), `collect` reads its tokens. Nothing of a step needs the tokens of the one before on
the host, so a step may be launched before the last one was collected. A step in which all rows decode has a
fixed shape on CUDA and is a captured graph (`decode_step`). Called by the instance loop.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.engine.cpu.fetch import use_faster_cache
from python_backends.engine.cpu.library import has_tiles, library, multiplies_bytes
from python_backends.engine.cpu.model import PackedModel
from python_backends.engine.cpu.served import obstacle
from python_backends.engine.cpu.steps import LayerSteps
from python_backends.engine.device import DeviceMemory, device_memory, host_copy, take_device
from python_backends.engine.kv.block_bytes import BlockBytes
from python_backends.engine.kv.device_blocks import DeviceBlocks
from python_backends.engine.kv.kv_cache import BlockShape, KVCache, rows_of_bytes
from python_backends.engine.kv.kv_memory import Measured, block_cost
from python_backends.engine.largest_steps import largest_steps
from python_backends.engine.model.description import Layer, Model
from python_backends.engine.model.limits import (
    block_shape,
    declared_tokens,
    model_limits,
    most_stop_ids,
    one_block_limits,
)
from python_backends.engine.model.loading import Weights, facts_of, open_weights
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.protocol import ReadAdapter
from python_backends.engine.slots.adapter_slots import AdapterSlots
from python_backends.engine.slots.log_probs import row_log_probs, unpacked
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.step_timer import cuda_timer
from python_backends.engine.torch.adapters import peft_files
from python_backends.engine.torch.adapters.factors import adapted_model
from python_backends.engine.torch.adapters.slot_adapters import SlotAdapters
from python_backends.engine.torch.decode_step import Graphs
from python_backends.engine.torch.decoder import Decoder
from python_backends.engine.torch.kernel_trial import kernel_obstacle
from python_backends.engine.torch.step_launcher import LaunchedStep, StepLauncher
from python_backends.engine.torch.threads import Threads
from python_backends.engine.torch.training.lora_in_training import LoraInTraining
from python_backends.engine.torch.training.model import TrainedModel, load_trained_model
from python_backends.engine.torch.training.trainable import Trainable
from python_backends.guides.guides import Guides
from python_backends.linux.quota import usable_processors
from python_backends.linux.start_clock import start_clock
from python_backends.nouns.step import StepOutput, StepPlan
from python_backends.nouns.training import AdapterShape
from python_backends.settings import TRAINS, Settings, SettingsError

log = logging.getLogger("gapless.instance")

WEIGHTS = "model.directory, model.weights or model.dtype: the weights do not fit the GPU"


class TorchEngine:
    plans_steps = False
    _adapters: AdapterSlots[Any]  # as layers or torch's operators take them

    @torch.no_grad()
    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError where the model, its KV blocks or its largest step do not fit."""
        self._settings, facts = settings, facts_of(settings)
        self.device = take_device(settings.model.device)
        layers_library = _library(settings)
        # beside the layers, sampling is all that torch does in a step
        self._threads = _threads(settings.engine.threads if layers_library is None else 1, self.device)
        # parts of a product are added in float32
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        memory = device_memory(self.device)
        # what is free of it decides how many KV blocks there are
        measured = memory if settings.engine.measures_kv else None
        # where it is measured, one block will do for the largest steps
        self.limits = (model_limits if measured is None else one_block_limits)(settings, facts)
        self._kernels = uses_kernels(settings.engine.cuda_graphs, self.device)
        weights = open_weights(
            settings,
            facts,
            self.device,
            for_layers=layers_library is not None,
            with_tiles=layers_library is not None and has_tiles(layers_library),
        )
        self._adapted_model = adapted_model(facts, weights.dtype, self.device)
        description = _described(settings, facts, weights)
        self.can_train = facts.experts is None and _can_train(settings, self.device, self._kernels)
        # beside the layers, training has weights of its own
        self._trainable = Trainable(facts, description) if self.can_train and not layers_library else None
        watch = iter if self._trainable is None else self._trainable.watch
        layers = watch(start_clock.timed("reading weights", take_layers(facts, weights)))
        shape = block_shape(settings, facts)
        self._layer_steps: LayerSteps | None = None  # None: torch's operators compute
        if layers_library is not None:
            packed = PackedModel(
                description,
                weights.dtype,
                self.limits.max_model_tokens,
                self.limits.state_layer,
                multiplies_bytes(layers_library),
            )
            del description  # the embedding as it was read
            self._open_layers(packed, layers, layers_library, shape, settings.engine.threads)
            return
        with _fitting(WEIGHTS):
            self.decoder = Decoder(
                description, layers, self.limits.max_model_tokens, self._kernels, self.limits.state_layer
            )
        del description, layers
        captures = settings.engine.cuda_graphs == "auto" and self.device.type == "cuda" and self._kernels
        has_fixed_shapes = captures or settings.engine.cuda_graphs == "eager"
        stop_ids = most_stop_ids(facts) if has_fixed_shapes else None
        self._make_state(shape, stop_ids)
        if measured is not None:
            self.limits = model_limits(settings, facts, self._measured_blocks(measured, shape))
            self._make_state(shape, stop_ids)
        if has_fixed_shapes:
            self._fix_shapes(Graphs(self.device) if captures else None)
        if memory is not None:
            self._run_largest_steps()
        if self.device.type == "cuda":
            self._launcher.timer = cuda_timer(self.device)
        self._show_blocks(shape)

    def _open_layers(
        self, packed: PackedModel, layers: Iterable[Layer], path: Path, shape: BlockShape, threads: int
    ) -> None:
        """All steps are theirs."""
        packed.take(layers)
        start_clock.ended("packing weights")
        # one for rows of padding, which training has
        self.cache = KVCache(shape, self.limits.num_blocks + 1, self.device)
        self.state = SlotState(self.limits, self.device)
        self._num_threads = threads or usable_processors()
        model = packed.open(path, self.cache, self._num_threads)
        self._adapters = AdapterSlots()
        self._layer_steps = LayerSteps(self.state, model, self._adapters)
        self._show_blocks(shape)

    def _show_blocks(self, shape: BlockShape) -> None:
        """All is in its place: blocks may be read and written."""
        self.kv_format, self.block_bytes = shape.kv_format, shape.num_bytes
        copies = _block_copies(self.cache)
        self.export_blocks, self.import_blocks = copies.read, copies.write

    def _make_state(self, shape: BlockShape, stop_ids: int | None) -> None:
        """KV cache and slot state for `limits`."""
        blocks = self.limits.num_blocks + 1  # one for rows of padding
        with _fitting(f"engine.kv_memory_gib or kv_blocks: {blocks} blocks of {shape.num_bytes} bytes"):
            self.cache = KVCache(shape, blocks, self.device)
        self._adapters = adapters = SlotAdapters(self.device, joins=self.device.type == "cuda")
        self.state = SlotState(self.limits, self.device, self._kernels, stop_ids)
        self._launcher = StepLauncher(self.decoder, self.state, self.cache, adapters, self._kernels)
        self._launched: deque[LaunchedStep] = deque()

    @property
    def _step_tokens(self) -> int:
        """The most tokens of one step, as the slot scheduler plans it."""
        return self.limits.step_tokens(self._settings.engine.token_budget)

    def _measured_blocks(self, memory: DeviceMemory, shape: BlockShape) -> int:
        """How many KV blocks the device has memory for, besides weights and
        the largest steps, which are run to know.
        """
        step_bytes = memory.peak_of(self._run_largest_steps)
        del self.cache, self._launcher
        measured = Measured(memory.give_back(), step_bytes)
        log.info("%s: %s", self.device, measured)
        num_blocks = measured.usable // block_cost(shape.num_bytes, shape.num_layers, not self._kernels)
        if num_blocks < 2:  # one is for rows of padding
            raise SettingsError(
                f"model.device = '{self.device}': {measured}; a block takes {shape.num_bytes} bytes"
            )
        return num_blocks - 1

    def _fix_shapes(self, graphs: Graphs | None) -> None:
        """`graphs`: see `DecodeSteps`."""
        with _fitting(
            f"engine.kv_memory_gib, engine.slots or engine.token_budget: steps of up to {self._step_tokens}"
            f" tokens do not fit next to {self.limits.num_blocks} KV blocks"
        ):
            self._launcher.fix_shapes(graphs, self._step_tokens)

    def _run_largest_steps(self) -> None:
        """Where attention gathers blocks, what it gathers is no more than the pool has: counted with the
        blocks, not measured here.
        """
        context = self.limits.max_model_tokens if self._kernels else 1
        with _fitting(
            f"engine.slots, engine.token_budget or engine.kv_memory_gib: a step of {self._step_tokens}"
            f" tokens, or one that draws for {self.limits.num_slots} slots, does not fit next to the weights"
            f" and {self.limits.num_blocks} KV blocks"
        ):
            for plan in largest_steps(self.limits, self._step_tokens, context):
                self.launch(plan)
                self.collect()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        if self._layer_steps is not None:
            torch.set_num_threads(1)  # two sets of threads would fight
            self._layer_steps.launch(plan)
            torch.set_num_threads(self._num_threads)  # for what is trained before the next step
            return
        began_s = time.monotonic()
        step = self._launcher.launch(plan)
        is_decode = len(plan.slots) and not len(plan.tokens)
        if self._threads is not None and is_decode:
            now_s = time.monotonic()
            self._threads.step(now_s - began_s, now_s)
        # also that of a step without rows, on any device
        is_on_host = step.result.device.type == "cpu"
        self._launched.append(step if is_on_host else _sent(step))

    def collect(self) -> StepOutput:
        if self._layer_steps is not None:
            return self._layer_steps.collect()
        step = self._launched.popleft()
        if step.done is not None:
            step.done.synchronize()
        result = np.empty_like(step.result.numpy())
        result[:, step.order] = step.result.numpy()
        scores = None if step.log_probs is None else row_log_probs(step.log_probs.numpy(), step.asking)
        tokens, finishes = result[0].astype(np.int32), result[1].astype(np.uint8)
        states = None if step.states is None else step.states.numpy()
        prompts = None if step.prompt_log_probs is None else unpacked(step.prompt_log_probs.numpy())
        return StepOutput(step.number, tokens, finishes, scores, *step.times(), states, prompts)

    def follow(self, guides: Guides) -> None:
        self.state.follow(guides)

    def read_adapter(self, directory: Path, root: Path) -> ReadAdapter:
        adapter = peft_files.read(directory, root, self._adapted_model.most_bytes)
        factors = self._adapted_model.factors(adapter)
        steps = self._layer_steps
        return ReadAdapter(adapter.digest, factors if steps is None else steps.packed_adapter(factors))

    def install_adapter(self, digest: str, weights: Any) -> None:
        self._adapters.install(digest, weights)

    def drop_adapter(self, digest: str) -> None:
        self._adapters.drop(digest)

    def start_training(self) -> Callable[[AdapterShape, int], LoraInTraining]:
        """See `Trains`. Beside the layers it reads the weights again."""
        assert self.can_train, TRAINS
        cache = self.cache.twin()
        if self._trainable is None:
            model = load_trained_model(self._settings, cache)
        else:
            model = TrainedModel(self._trainable, self.decoder.twin(), cache)
        return partial(LoraInTraining, model)

    def close(self) -> None:
        if self._layer_steps is not None:
            self._layer_steps.close()
            return
        self._launched.clear()


@contextmanager
def _fitting(what: str) -> Iterator[None]:
    """Raises SettingsError, which begins with `what`, where the memory of a GPU does not suffice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise SettingsError(f"{what}: {error}") from error


def _described(settings: Settings, facts: ModelFacts, weights: Weights) -> Model:
    """Everything but the layers; the embedding is read now."""
    if facts.family.left_out:
        log.info("of %s the part for text is served: images are not taken", facts.architecture)
    with _fitting(WEIGHTS):
        description = describe(facts, weights, declared_tokens(settings, facts))
    start_clock.ended("reading weights")
    return description


def _library(settings: Settings) -> Path | None:
    """With the layers, where they compute the model; None, and the reason in the log, where they don't."""
    if settings.model.device != "cpu":
        return None
    if why := obstacle(settings):
        log.info("torch's operators compute, no layers of ours: %s", why)
        return None
    path = library()
    if path is not None:
        start_clock.ended("layers in C++")
        use_faster_cache(path)
        start_clock.ended("trials")
    return path


def _can_train(settings: Settings, device: torch.device, has_kernels: bool) -> bool:
    """As TRAINS says. With our kernels between products, nothing shows yet that what is kept is what they
    computed.
    """
    is_known = device.type == "cpu" or (device.type == "cuda" and not has_kernels)
    is_plain = settings.model.weights == "same" and not settings.steps_ahead
    return settings.finetuning.enabled and is_known and is_plain


def _block_copies(cache: KVCache) -> BlockBytes | DeviceBlocks:
    """On a CPU an import need not wait for launched steps: `launch` returns after its step."""
    if cache.blocks.device.type == "cpu":
        return BlockBytes(rows_of_bytes(cache.blocks))
    return DeviceBlocks(cache.blocks)


def uses_kernels(cuda_graphs: str, device: torch.device) -> bool:
    """Whether the engine works with kernels of ours; on a GPU, the log says why it does not."""
    if cuda_graphs == "off":
        return False
    obstacle = kernel_obstacle(device)
    if obstacle and device.type == "cuda":
        log.warning("no kernels of ours and no captured steps, which is slower: %s", obstacle)
    return not obstacle


def _sent(step: LaunchedStep) -> LaunchedStep:
    """Starts the way of its result, log-probabilities and hidden states to the host."""
    result = host_copy(step.result)
    scores, states, prompts = (
        None if tensor is None else host_copy(tensor)
        for tensor in (step.log_probs, step.states, step.prompt_log_probs)
    )
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(step.result.device))
    return replace(step, result=result, log_probs=scores, states=states, prompt_log_probs=prompts, done=done)


def _threads(asked: int, device: torch.device) -> Threads | None:
    """Sets how many torch has. What changes that later; None where the settings say how many, or there is
    one, or a GPU computes.
    """
    set_threads(asked)
    count = torch.get_num_threads()
    return Threads(count, torch.set_num_threads) if device.type == "cpu" and not asked and count > 1 else None


def set_threads(threads: int) -> None:
    """At the start.

    Each function of torch's vector library is called by one thread first: where two are the first, some
    values may be wrong by 1e-4 (docs/notebook/answers.md), and rotary embeddings would not be the same after
    a restart.
    """
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    for function in (torch.cos, torch.sin, torch.tanh, torch.exp):
        function(torch.zeros(8))
