"""A model that can be trained: the engine's decoder with recorders in its blocks, KV blocks for one pack, and
its adapter.

The forward pass is the engine's own: a tile is a layer of a step of prefill spans of which no row samples. A
window comes after the decode rows of a step of serving, in the same products. Only one pack is computed at a
time. Called by the trainer, which decides what comes when, and by the engine for a step with a window.
Tested in tests/cpu/test_training.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from python_backends.engine.device import take_device
from python_backends.engine.kv.kv_cache import BlockShape, KVCache
from python_backends.engine.model.checkpoint import declared_tokens, load_model, read_config
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.torch.adapters.modules import Modules
from python_backends.engine.torch.decoder import Decoder
from python_backends.engine.torch.projection import Projection
from python_backends.engine.torch.step_batch import StepBatch
from python_backends.engine.torch.training.activations import LayerRecorder, Recorder, num_blocks
from python_backends.engine.torch.training.adapter import Adapter
from python_backends.engine.torch.training.layer_backward import LayerParts, backward
from python_backends.engine.torch.training.pack_run import PackBlocks, PackRun, blocks_of, joined
from python_backends.engine.torch.training.projection import AdaptedProjection, Factors
from python_backends.engine.torch.training.trainable import Trainable
from python_backends.nouns.request import Ids
from python_backends.nouns.training import (
    PROJECTIONS,
    AdapterShape,
    LayerFacts,
    LayerPlan,
    Pack,
    Tile,
    Window,
)
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
        self._factors: list[dict[str, Factors]] = []
        self._parts: list[LayerParts] = []
        self._run: PackRun | None = None

    def _adapted(self, layer: int) -> dict[str, AdaptedProjection]:
        block, facts = self.decoder.blocks[layer], self._small[layer].facts
        adapted = {
            name: AdaptedProjection(_plain(block.projections[name]), self._recorder.rows)
            for name in PROJECTIONS
        }
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
            memory = PackBlocks(self.blocks_for(count + 1), np.arange(count, dtype=np.int32), None)
        else:
            count = int(blocks_of(pack, self._cache.shape.block_tokens).sum())
            memory = PackBlocks(self._cache, borrowed[:count], borrowed)
        plans = [part.plan for part in self._parts]
        self._run = PackRun(self.decoder, self.facts[0], pack, num_labels, plans, memory)

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
    def forward(self, tile: Tile) -> None:
        """The forward pass of a tile; tiles come in the order of `PackCursor`."""
        assert self._run is not None
        with self._recorder.recording(self._run.state.activations, tile.first, tile.last - tile.first):
            self._run.forward(tile)
        self._synchronise()

    @torch.no_grad()
    def window(self, first: int, last: int) -> None:
        """The forward pass of tokens [first, last) in all layers, if no step has computed it."""
        assert self._run is not None
        run = self._run
        if run.has_residual(first, last):
            return
        with self._recorder.recording(run.state.activations, first, last - first):
            x = self.decoder.residual(run.batch(first, last), run.cache)
        run.keep_residual(first, x[: last - first])

    @property
    def is_in_blocks(self) -> bool:
        """Whether a pack is computed whose KV blocks are those of requests: a step has one cache."""
        return self._run is not None and self._run.memory.borrowed is not None

    def step(self, decodes: StepBatch, window: Window, cache: KVCache) -> Tensor:
        """The logits [rows, vocabulary] of `decodes`, in one forward pass with a window, over the blocks of
        `cache`.
        """
        assert self._run is not None
        run, count, first_row = self._run, window.last - window.first, len(decodes.tokens)
        batch = joined(decodes, run.batch(window.first, window.last, first_row))
        with self._recorder.recording(run.state.activations, window.first, count, first_row):
            logits, x = self.decoder.forward_with_residual(batch, cache)
        run.keep_residual(window.first, x[first_row : first_row + count])
        return logits

    @torch.no_grad()
    def loss(self, first: int, last: int) -> float:
        """Of tokens [first, last) after all layers: their part of the mean over all labels."""
        assert self._run is not None
        run = self._run
        loss, dx = self._loss.of(run.residual(first, last), run.labels[first:last], run.num_labels)
        run.state.dx[first:last] = dx
        return float(loss)

    @torch.no_grad()
    def backward(self, tile: Tile) -> None:
        """The backward pass of a tile; tiles come in the order of `PackCursor`."""
        assert self._run is not None
        backward(self._parts[tile.layer], self._run.state, tile)
        self._synchronise()

    def _synchronise(self) -> None:
        """The time of a piece is measured."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

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
    assert isinstance(projection, Projection)
    return projection
