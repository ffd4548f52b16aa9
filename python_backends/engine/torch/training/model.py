"""A model that can be trained: the engine's decoder with recorders in its blocks, KV blocks for one pack, and
its adapter.

The forward pass is the engine's own: a window is a step of prefill spans of which no row samples. Only one
pack is computed at a time. Called by the trainer, which decides what comes when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from python_backends.engine.device import take_device
from python_backends.engine.kv.kv_cache import BlockShape, KVCache
from python_backends.engine.model.checkpoint import declared_tokens, load_model, read_config
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch.adapters.modules import Modules
from python_backends.engine.torch.decoder import Decoder
from python_backends.engine.torch.projection import Projection
from python_backends.engine.torch.step_batch import StepBatcher
from python_backends.engine.torch.training.activations import Activations, LayerRecorder, Recorder, num_blocks
from python_backends.engine.torch.training.adapter import Adapter
from python_backends.engine.torch.training.layer_backward import LayerParts, PackState, backward
from python_backends.engine.torch.training.projection import AdaptedProjection, Factors
from python_backends.engine.torch.training.trainable import Trainable
from python_backends.nouns.request import Ids, ModelLimits, Sampling
from python_backends.nouns.step import Admit, SpanKind, StepPlan
from python_backends.nouns.training import PROJECTIONS, AdapterShape, LayerFacts, LayerPlan, Pack, Tile
from python_backends.settings import Settings, SettingsError

BLOCK_TOKENS = 16


class TrainedModel:
    """`decoder` gets recorders and adapters; it may share its weights with one that serves (`Decoder.twin`).
    Weights must be plain: int8 has no products in the other direction.
    """

    @torch.no_grad()
    def __init__(self, trainable: Trainable, decoder: Decoder, cache: KVCache | None = None) -> None:
        """`cache`: of which blocks are borrowed; None: packs have memory of their own. Raises SettingsError
        if the weights are not plain.
        """
        self.modules: Modules = trainable.modules
        self.prefix = trainable.prefix
        self.dtype, self.device = trainable.dtype, trainable.device
        self.decoder = decoder
        self._small = trainable.small
        self.facts: tuple[LayerFacts, ...] = tuple(each.facts for each in self._small)
        self._recorder = Recorder()
        self._projections = [self._adapted(layer) for layer in range(len(self._small))]
        self._loss = trainable.loss(_plain(decoder.head))
        self._heads, self._cache = trainable.heads, cache
        self._adapter: Adapter | None = None
        self._factors: list[dict[str, Factors]] = []
        self._parts: list[LayerParts] = []
        self._run: _PackRun | None = None

    def _adapted(self, layer: int) -> dict[str, AdaptedProjection]:
        block, facts = self.decoder.blocks[layer], self._small[layer].facts
        adapted = {name: AdaptedProjection(_plain(block.projections[name])) for name in PROJECTIONS}
        LayerRecorder(block, layer, adapted, (facts.query, facts.query + facts.kv), self._recorder)
        return adapted

    @torch.no_grad()
    def new_adapter(self, shape: AdapterShape) -> Adapter:
        """All zero, in float32 or better."""
        dtype = torch.promote_types(self.dtype, torch.float32)
        return Adapter(self.modules, self.prefix, len(self._small), shape, dtype)

    @torch.no_grad()
    def install(self, adapter: Adapter, plans: Sequence[LayerPlan]) -> None:
        """The weights of `adapter` as they are now, with gradients of 0, for the packs that follow."""
        self._adapter = adapter
        self._factors = []
        for layer, projections in enumerate(self._projections):
            factors = {name: adapter.factors(layer, name, self.dtype) for name in PROJECTIONS}
            for name, projection in projections.items():
                projection.adapt(factors[name])
            self._factors.append({name: each for name, each in factors.items() if each is not None})
        self._parts = [
            LayerParts(layer, small, projections, plan, self.dtype)
            for layer, (small, projections, plan) in enumerate(
                zip(self._small, self._projections, plans, strict=True)
            )
        ]

    def num_blocks(self, pack: Pack, plans: Sequence[LayerPlan]) -> int:
        """How many KV blocks to borrow for a pack; 0: none can be. ValueError if one is too small for what a
        token keeps.
        """
        if self._cache is None:
            return 0
        values = self._cache.blocks[0].numel()
        kept = num_blocks(plans, len(pack.tokens), self.dtype, values)
        return kept + int(blocks_of(pack, self._cache.shape.block_tokens).sum())

    @torch.no_grad()
    def begin(self, pack: Pack, num_labels: int, borrowed: Ids | None = None) -> None:
        """The pack whose windows and tiles follow; `num_labels`: of its whole mini-batch. `borrowed`: KV
        blocks [num_blocks] for it, until `end`.
        """
        if borrowed is None or self._cache is None:
            count = int(blocks_of(pack, BLOCK_TOKENS).sum())
            memory = _Memory(self.blocks_for(count + 1), np.arange(count, dtype=np.int32), None)
        else:
            count = int(blocks_of(pack, self._cache.shape.block_tokens).sum())
            memory = _Memory(self._cache, borrowed[:count], borrowed)
        self._run = _PackRun(self, pack, num_labels, [part.plan for part in self._parts], memory)

    @torch.no_grad()
    def end(self) -> None:
        """Nothing of the pack is needed any more. What was borrowed is filled with zeros: not every value
        that training has is a number that attention may meet.
        """
        if self._run is not None and self._run.memory.borrowed is not None:
            cache = self._run.cache.blocks
            cache[torch.from_numpy(self._run.memory.borrowed.astype(np.int64))] = 0
        self._run = None

    @torch.no_grad()
    def window(self, first: int, last: int) -> float:
        """The forward pass of tokens [first, last); their part of the loss, the mean over all labels."""
        assert self._run is not None
        run = self._run
        self._recorder.begin(run.state.activations, first, last - first)
        try:
            x = self.decoder.residual(run.batcher.batch(run.plan(first, last)), run.cache)[: last - first]
        finally:
            self._recorder.end()
        loss, dx = self._loss.of(x, run.labels[first:last], run.num_labels)
        run.state.dx[first:last] = dx
        return float(loss)

    @torch.no_grad()
    def tile(self, tile: Tile) -> None:
        """The backward pass of a tile; tiles come in the order of `PackCursor`."""
        assert self._run is not None
        backward(self._parts[tile.layer], self._run.state, tile)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the time of a piece is measured

    @property
    def num_kept_bytes(self) -> int:
        """Of the pack that is computed: activations, and KV blocks with the one for padding."""
        assert self._run is not None
        return self._run.state.activations.num_bytes + self._run.cache.blocks.nbytes

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """Of the weights that were installed, by key; summed over all tiles since."""
        assert self._adapter is not None
        found: dict[str, Tensor] = {}
        for layer, by_name in enumerate(self._factors):
            for name, factors in by_name.items():
                found |= self._adapter.gradients(layer, name, factors)
        return found

    def blocks_for(self, num_blocks: int) -> KVCache:
        heads = self._heads
        shape = BlockShape(len(self._small), BLOCK_TOKENS, heads.num_kv_heads, heads.head_dim, self.dtype)
        return KVCache(shape, num_blocks, self.device)


def blocks_of(pack: Pack, block_tokens: int) -> Ids:
    """[sequences] the KV blocks of each."""
    counts: Ids = -(-np.diff(pack.bounds) // block_tokens)
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    cache: KVCache
    key_blocks: Ids  # of `cache`, for keys and values
    borrowed: Ids | None  # these, and others for activations; None: `cache` is the pack's own


class _PackRun:
    """A pack in its memory, and steps of prefill spans over it."""

    def __init__(
        self, model: TrainedModel, pack: Pack, num_labels: int, plans: Sequence[LayerPlan], memory: _Memory
    ) -> None:
        self._pack, self.num_labels, self.memory, self.cache = pack, num_labels, memory, memory.cache
        lengths, block_tokens = np.diff(pack.bounds), memory.cache.shape.block_tokens
        ends = np.cumsum(blocks_of(pack, block_tokens))
        self._blocks: list[Ids] = np.split(memory.key_blocks, ends[:-1])
        # the last block of a cache is for rows of padding
        limits = ModelLimits(int(lengths.max()), 0, len(lengths), len(self.cache.blocks) - 1, block_tokens)
        state = SlotState(limits, model.device, False, None)
        state.apply([self._admit(slot, int(length)) for slot, length in enumerate(lengths)])
        self.batcher = StepBatcher(state, self.cache, model.decoder.windows)
        self.labels = torch.from_numpy(pack.labels.astype(np.int64)).to(model.device)
        self.state = self._state(model, plans, lengths)

    def _state(self, model: TrainedModel, plans: Sequence[LayerPlan], lengths: Any) -> PackState:
        count, device = len(self._pack.tokens), model.device
        sums = torch.promote_types(model.dtype, torch.float32)
        positions = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])).to(device)
        kv_width = model.facts[0].kv
        return PackState(
            pack=self._pack,
            activations=Activations(plans, count, model.dtype, device, self._borrowed_values()),
            keys_values=self._keys_values,
            rotations=model.decoder.rotations(positions),
            dx=torch.zeros((count, model.facts[0].hidden), dtype=sums, device=device),
            dk=torch.zeros((count, kv_width), dtype=sums, device=device),
            dv=torch.zeros((count, kv_width), dtype=sums, device=device),
        )

    def _borrowed_values(self) -> list[Tensor] | None:
        """The blocks for activations, each as its values."""
        if self.memory.borrowed is None:
            return None
        blocks = self.memory.borrowed[len(self.memory.key_blocks) :].tolist()
        return [self.cache.blocks[block].view(-1) for block in blocks]

    def _admit(self, slot: int, length: int) -> Admit:
        return Admit(slot, 0, Sampling(max_tokens=1), length, 0, self._blocks[slot])

    def plan(self, first: int, last: int) -> StepPlan:
        """Tokens [first, last) as prefill spans, of which none samples."""
        pieces = self._pack.pieces(first, last)
        slots = np.array([slot for slot, _, _ in pieces], np.int32)
        starts = np.array([begin - self._pack.bounds[slot] for slot, begin, _ in pieces], np.int32)
        lengths = np.array([end - begin for _, begin, end in pieces], np.int32)
        kinds = np.full(len(slots), SpanKind.PREFILL, np.uint8)
        nothing = np.zeros(len(slots), np.bool_)
        tokens = self._pack.tokens[first:last]
        return StepPlan(0, (), slots, np.zeros_like(slots), starts, lengths, kinds, nothing, tokens)

    def _keys_values(self, layer: int, sequence: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Of a sequence's tokens [first, last): [kv_heads, tokens, dim] each, copied."""
        size = self.cache.shape.block_tokens
        begin, end = first // size, -(-last // size)
        blocks = torch.from_numpy(self._blocks[sequence][None, begin:end].astype(np.int64))
        gathered = self.cache.gather(layer, self.cache.gather_rows(blocks.to(self.cache.blocks.device)), 1)
        here = slice(first - begin * size, last - begin * size)
        keys, values = (part[0, :, here].clone() for part in gathered)
        return keys, values


def load_trained_model(settings: Settings) -> TrainedModel:
    """The checkpoint of `settings`, without a server. Raises SettingsError."""
    if settings.model.weights != "same":
        raise SettingsError(f"model.weights = '{settings.model.weights}': only 'same' can be trained")
    config = read_config(settings)
    device = take_device(settings.model.device)
    with torch.no_grad():
        return trained_model(load_model(settings, config, device), declared_tokens(settings, config))


def trained_model(model: Any, declared: int) -> TrainedModel:
    """transformers' `model` is used up. `declared` is the longest sequence, in tokens."""
    description = describe(model, declared)
    trainable = Trainable(model, description)
    return TrainedModel(trainable, Decoder(description, trainable.watch(take_layers(model)), declared))


def _plain(projection: Any) -> Projection:
    if not isinstance(projection, Projection):
        raise SettingsError("model.weights: only 'same' can be trained")
    return projection
