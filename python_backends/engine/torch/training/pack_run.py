"""A pack in training, in its memory: KV blocks for keys and values, what the forward pass keeps, and the
residual stream. A tile is a batch of prefill spans, of which none samples. Owned by the trainer of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from python_backends.engine.device import to_device
from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch.decoder import Decoder, StepInputs
from python_backends.engine.torch.step_batch import StepBatcher
from python_backends.engine.torch.training.activations import Activations, Borrowed, Recorder
from python_backends.engine.torch.training.layer_backward import LayerParts, PackState, backward
from python_backends.engine.torch.training.loss import Loss, Targets
from python_backends.nouns.request import Ids, ModelLimits, Sampling
from python_backends.nouns.step import Admit, StepPlan
from python_backends.nouns.training import Pack, Tile


def blocks_of(pack: Pack, block_tokens: int) -> Ids:
    """[sequences] the KV blocks of each."""
    counts: Ids = -(-np.diff(pack.bounds) // block_tokens)
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class PackBlocks:
    cache: KVCache
    key_blocks: Ids  # of `cache`, for keys and values
    borrowed: Ids | None  # these, and others for activations; None: `cache` is the pack's own


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """What the tiles of all packs of a mini-batch go through."""

    decoder: Decoder  # whose blocks show what they compute to `recorder`
    recorder: Recorder
    layers: Sequence[LayerParts]
    loss: Loss
    prepare: Callable[[int], None]  # a layer, before its first tile of a mini-batch


class PackRun:
    """`num_labels`: of the whole mini-batch. Tiles come in the order of `PackCursor`."""

    @torch.no_grad()
    def __init__(self, passes: Passes, pack: Pack, num_labels: int, memory: PackBlocks) -> None:
        self._passes, self._pack, self._num_labels = passes, pack, num_labels
        self._memory, self.cache = memory, memory.cache
        self._inputs = dict[tuple[int, int], StepInputs]()
        self._rows_read = dict[tuple[int, int, int], Tensor]()  # of the cache, by sequence and blocks
        decoder = passes.decoder
        lengths, block_tokens = np.diff(pack.bounds), memory.cache.shape.block_tokens
        ends = np.cumsum(blocks_of(pack, block_tokens))
        self._blocks: list[Ids] = np.split(memory.key_blocks, ends[:-1])
        # the last block of a cache is for rows of padding
        limits = ModelLimits(int(lengths.max()), 0, len(lengths), len(self.cache.blocks) - 1, block_tokens)
        self._device = decoder.embedding.device
        state = SlotState(limits, self._device, False, None)
        state.apply([self._admit(slot, int(length)) for slot, length in enumerate(lengths)])
        self._batcher = StepBatcher(state, self.cache, decoder.windows)
        self._targets = self._on_device(pack)
        self._log_probs = torch.zeros(len(pack.tokens), device=self._device)
        self.state = self._state(lengths)
        # [2, tokens, hidden]: after a layer, and what that layer adds to it
        self._stream: Tensor
        self._added: Tensor
        self._stream, self._added = decoder.embedding.new_empty((2, *self.state.dx.shape))

    def _state(self, lengths: Any) -> PackState:
        decoder, layers = self._passes.decoder, self._passes.layers
        count, dtype, device = len(self._pack.tokens), decoder.embedding.dtype, self._device
        facts, plans = layers[0].small.facts, [layer.plan for layer in layers]
        sums = torch.promote_types(dtype, torch.float32)
        positions = to_device(np.concatenate([np.arange(length) for length in lengths]), device)
        return PackState(
            pack=self._pack,
            activations=Activations(plans, count, dtype, device, self._borrowed()),
            keys_values=self._keys_values,
            rotations=decoder.rotations(positions),
            dx=torch.zeros((count, facts.hidden), dtype=sums, device=device),
            dk=torch.zeros((count, facts.kv), dtype=sums, device=device),
            dv=torch.zeros((count, facts.kv), dtype=sums, device=device),
        )

    def _borrowed(self) -> Borrowed | None:
        """The blocks for activations."""
        if self._memory.borrowed is None:
            return None
        blocks = self._memory.borrowed[len(self._memory.key_blocks) :].tolist()
        return Borrowed(self.cache.blocks.flatten(1), blocks)

    def _admit(self, slot: int, length: int) -> Admit:
        return Admit(slot, 0, Sampling(max_tokens=1), length, 0, self._blocks[slot])

    @torch.no_grad()
    def forward(self, tile: Tile) -> None:
        self._passes.prepare(tile.layer)
        with self._passes.recorder.recording(self.state.activations, tile.first, tile.last - tile.first):
            self._forward(tile)

    @torch.no_grad()
    def loss(self, first: int, last: int) -> float:
        """Of tokens [first, last), after all layers: their part of the mean over all labels."""
        rows = slice(first, last)
        found = self._passes.loss.of(self._stream[rows], self._targets.of(rows), self._num_labels)
        loss, self.state.dx[rows], self._log_probs[rows] = found
        return float(loss)

    @property
    def log_probs(self) -> NDArray[np.float32]:
        """[tokens] of the labels, after the loss; 0 where there is no label."""
        return np.array(self._log_probs.cpu())

    def _on_device(self, pack: Pack) -> Targets:
        others = (pack.weights, pack.drawn_log_probs)
        labels = to_device(pack.labels.astype(np.int64), self._device)
        return Targets(labels, *(None if each is None else to_device(each, self._device) for each in others))

    @torch.no_grad()
    def backward(self, tile: Tile) -> None:
        backward(self._passes.layers[tile.layer], self.state, tile)

    def _forward(self, tile: Tile) -> None:
        rows, decoder = slice(tile.first, tile.last), self._passes.decoder
        block = decoder.blocks[tile.layer]
        inputs, count = self._inputs_of(tile.first, tile.last), tile.last - tile.first
        if tile.layer == 0:
            x, added = decoder.embedded(inputs.batch), None
        else:  # copies, with rows of zeros after them
            padding = (0, 0, 0, len(inputs.batch.tokens) - count)
            x, added = (functional.pad(each[rows], padding) for each in (self._stream, self._added))
        more = block.forward(x, added, inputs)
        if tile.layer + 1 == len(decoder.blocks):
            x.add_(more, alpha=decoder.residual_scale)
        self._stream[rows], self._added[rows] = x[:count], more[:count]

    def _inputs_of(self, first: int, last: int) -> StepInputs:
        """The same for each layer."""
        if (first, last) not in self._inputs:
            batch = self._batcher.batch(self._plan(first, last))
            self._inputs[first, last] = self._passes.decoder.inputs(batch, self.cache)
        return self._inputs[first, last]

    def _plan(self, first: int, last: int) -> StepPlan:
        pieces = self._pack.pieces(first, last)
        slots = np.array([slot for slot, _, _ in pieces], np.int32)
        starts = np.array([begin - self._pack.bounds[slot] for slot, begin, _ in pieces], np.int32)
        lengths = np.array([end - begin for _, begin, end in pieces], np.int32)
        nothing = np.zeros(len(slots), np.bool_)
        tokens = self._pack.tokens[first:last]
        return StepPlan(0, (), slots, np.zeros_like(slots), starts, lengths, 0, nothing, tokens)

    def _keys_values(self, layer: int, sequence: int, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Of a sequence's tokens [first, last): [kv_heads, tokens, dim] each, copied."""
        size = self.cache.shape.block_tokens
        begin, end = first // size, -(-last // size)
        gathered = self.cache.gather(layer, self._rows_of(sequence, begin, end), 1)
        here = slice(first - begin * size, last - begin * size)
        keys, values = (part[0, :, here].clone() for part in gathered)
        return keys, values

    def _rows_of(self, sequence: int, begin: int, end: int) -> Tensor:
        """Of the cache, where blocks [begin, end) of a sequence are: the same for each layer."""
        where = sequence, begin, end
        if where not in self._rows_read:
            blocks = to_device(self._blocks[sequence][None, begin:end].astype(np.int64), self._device)
            self._rows_read[where] = self.cache.gather_rows(blocks)
        return self._rows_read[where]
