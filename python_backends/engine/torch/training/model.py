"""A model that can be trained: the engine's decoder with recorders in its blocks, KV blocks for one pack, and
its adapter.

The forward pass is the engine's own: a tile is a layer of a step of prefill spans of which no row samples.
Called by the trainer, which decides what comes when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.engine.device import take_device, to_device
from python_backends.engine.kv.kv_cache import BlockShape, KVCache
from python_backends.engine.model.limits import declared_tokens
from python_backends.engine.model.loading import Weights, facts_of, open_weights
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.torch.adapters.modules import Modules
from python_backends.engine.torch.decoder import Decoder
from python_backends.engine.torch.projection import Projection
from python_backends.engine.torch.training.activations import LayerRecorder, Recorder, num_blocks
from python_backends.engine.torch.training.adapter import Adapter
from python_backends.engine.torch.training.layer_backward import LayerParts
from python_backends.engine.torch.training.pack_run import PackBlocks, PackRun, Passes, blocks_of
from python_backends.engine.torch.training.projection import AdaptedProjection, Factors
from python_backends.engine.torch.training.trainable import Trainable
from python_backends.nouns.request import Ids
from python_backends.nouns.training import PROJECTIONS, AdapterShape, LayerFacts, LayerPlan, Pack
from python_backends.settings import Settings, SettingsError

BLOCK_TOKENS = 16


class TrainedModel:
    """`decoder` gets recorders and adapters; it may share its weights with one that serves (`Decoder.twin`).
    Weights must be plain: int8 has no products in the other direction.
    """

    @torch.no_grad()
    def __init__(self, trainable: Trainable, decoder: Decoder, cache: KVCache | None = None) -> None:
        """`cache`: of which blocks are borrowed; None: packs have memory of their own."""
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
        self._factors: list[dict[str, Factors] | None] = []  # by layer
        self._parts: list[LayerParts] = []

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
        """The weights of `adapter` as they are now, with gradients of 0, for the packs that follow. They must
        not change before the first pack's forward pass is done: each layer takes its own at its first tile.
        For all of them at once a step would have to wait.
        """
        self._adapter = adapter
        self._factors = [None] * len(self._projections)
        self._parts = [
            LayerParts(layer, small, projections, plan, self.dtype)
            for layer, (small, projections, plan) in enumerate(
                zip(self._small, self._projections, plans, strict=True)
            )
        ]

    @torch.no_grad()
    def prepare(self, layer: int) -> None:
        """A layer takes the adapter's weights, if it has not since `install`."""
        if self._factors[layer] is not None:
            return
        assert self._adapter is not None
        factors = {name: self._adapter.factors(layer, name, self.dtype) for name in PROJECTIONS}
        for name, projection in self._projections[layer].items():
            projection.adapt(factors[name])
        self._factors[layer] = {name: each for name, each in factors.items() if each is not None}

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
    def begin(self, pack: Pack, num_labels: int, borrowed: Ids | None = None) -> PackRun:
        """`num_labels`: of the whole mini-batch. `borrowed`: KV blocks [num_blocks] for the pack. What it
        leaves in them may be no numbers: a step clears the blocks that it begins and does not fill
        (`StepLauncher`).
        """
        if borrowed is None or self._cache is None:
            count = int(blocks_of(pack, BLOCK_TOKENS).sum())
            memory = PackBlocks(self.blocks_for(count + 1), np.arange(count, dtype=np.int32), None)
        else:
            counts = blocks_of(pack, self._cache.shape.block_tokens)
            count = int(counts.sum())
            memory = PackBlocks(self._cache, borrowed[:count], borrowed)
            # their rest is read and hidden; what others left there may be no number
            lasts = borrowed[np.cumsum(counts) - 1].astype(np.int64)
            self._cache.clear(to_device(lasts, self.device))
        passes = Passes(self.decoder, self._recorder, self._parts, self._loss, self.prepare)
        return PackRun(passes, pack, num_labels, memory)

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """Of the weights that were installed, by key; summed over all tiles since."""
        assert self._adapter is not None
        found: dict[str, Tensor] = {}
        for layer, by_name in enumerate(self._factors):
            for name, factors in (by_name or {}).items():
                found |= self._adapter.gradients(layer, name, factors)
        return found

    def blocks_for(self, num_blocks: int) -> KVCache:
        heads = self._heads
        shape = BlockShape(len(self._small), BLOCK_TOKENS, heads.num_kv_heads, heads.head_dim, self.dtype)
        return KVCache(shape, num_blocks, self.device)


def load_trained_model(settings: Settings, cache: KVCache | None = None) -> TrainedModel:
    """The checkpoint of `settings`, by itself. `cache`: see `TrainedModel`. Raises SettingsError."""
    if settings.model.weights != "same":
        raise SettingsError(f"model.weights = '{settings.model.weights}': only 'same' can be trained")
    facts = facts_of(settings)
    if facts.experts:
        raise SettingsError(f"model.directory = '{facts.path}': mixtures of experts are not trained")
    weights = open_weights(settings, facts, take_device(settings.model.device))
    return trained_model(facts, weights, declared_tokens(settings, facts), cache)


@torch.no_grad()
def trained_model(
    facts: ModelFacts, weights: Weights, declared: int, cache: KVCache | None = None
) -> TrainedModel:
    """`declared` is the longest sequence, in tokens. `cache`: see `TrainedModel`."""
    description = describe(facts, weights, declared)
    trainable = Trainable(facts, description)
    layers = trainable.watch(take_layers(facts, weights))
    return TrainedModel(trainable, Decoder(description, layers, declared), cache)


def _plain(projection: Any) -> Projection:
    assert isinstance(projection, Projection)
    return projection
