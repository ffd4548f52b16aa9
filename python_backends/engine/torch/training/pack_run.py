"""A pack in its memory: KV blocks for keys and values, what the forward pass keeps, and the residual stream.
Tiles and windows are batches of prefill spans, of which none samples; a window may stand in the batch of a
step of requests. Owned by the model that is trained.
Tested in tests/cpu/test_fused_windows.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch.attention_spans import AttentionSpans
from python_backends.engine.torch.decoder import Decoder, StepInputs
from python_backends.engine.torch.step_batch import StepBatch, StepBatcher
from python_backends.engine.torch.training.activations import Activations
from python_backends.engine.torch.training.layer_backward import PackState
from python_backends.nouns.request import Ids, ModelLimits, Sampling
from python_backends.nouns.step import Admit, StepPlan
from python_backends.nouns.training import LayerFacts, LayerPlan, Pack, Tile


def blocks_of(pack: Pack, block_tokens: int) -> Ids:
    """[sequences] the KV blocks of each."""
    counts: Ids = -(-np.diff(pack.bounds) // block_tokens)
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class PackBlocks:
    cache: KVCache
    key_blocks: Ids  # of `cache`, for keys and values
    borrowed: Ids | None  # these, and others for activations; None: `cache` is the pack's own


class PackRun:
    """`num_labels`: of the whole mini-batch; `plans`: what each layer keeps."""

    def __init__(
        self,
        decoder: Decoder,
        facts: LayerFacts,
        pack: Pack,
        num_labels: int,
        plans: Sequence[LayerPlan],
        memory: PackBlocks,
    ) -> None:
        self._pack, self.num_labels, self.memory, self.cache = pack, num_labels, memory, memory.cache
        self._decoder, self._inputs = decoder, dict[tuple[int, int], StepInputs]()
        lengths, block_tokens = np.diff(pack.bounds), memory.cache.shape.block_tokens
        ends = np.cumsum(blocks_of(pack, block_tokens))
        self._blocks: list[Ids] = np.split(memory.key_blocks, ends[:-1])
        # the last block of a cache is for rows of padding
        limits = ModelLimits(int(lengths.max()), 0, len(lengths), len(self.cache.blocks) - 1, block_tokens)
        device = decoder.embedding.device
        state = SlotState(limits, device, False, None)
        state.apply([self._admit(slot, int(length)) for slot, length in enumerate(lengths)])
        self._batcher = StepBatcher(state, self.cache, decoder.windows)
        self.labels = torch.from_numpy(pack.labels.astype(np.int64)).to(device)
        self.state = self._state(decoder, facts, plans, lengths)
        # [2, tokens, hidden]: after a layer, and what that layer adds to it
        self._stream: Tensor
        self._added: Tensor
        self._stream, self._added = decoder.embedding.new_empty((2, len(pack.tokens), facts.hidden))
        self._in_step = slice(0, 0)  # the window that a step of serving has computed last

    def _state(
        self, decoder: Decoder, facts: LayerFacts, plans: Sequence[LayerPlan], lengths: Any
    ) -> PackState:
        count, dtype, device = len(self._pack.tokens), decoder.embedding.dtype, decoder.embedding.device
        sums = torch.promote_types(dtype, torch.float32)
        positions = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])).to(device)
        return PackState(
            pack=self._pack,
            activations=Activations(plans, count, dtype, device, self._borrowed_values()),
            keys_values=self._keys_values,
            rotations=decoder.rotations(positions),
            dx=torch.zeros((count, facts.hidden), dtype=sums, device=device),
            dk=torch.zeros((count, facts.kv), dtype=sums, device=device),
            dv=torch.zeros((count, facts.kv), dtype=sums, device=device),
        )

    def _borrowed_values(self) -> list[Tensor] | None:
        """The blocks for activations, each as its values."""
        if self.memory.borrowed is None:
            return None
        blocks = self.memory.borrowed[len(self.memory.key_blocks) :].tolist()
        return [self.cache.blocks[block].view(-1) for block in blocks]

    def _admit(self, slot: int, length: int) -> Admit:
        return Admit(slot, 0, Sampling(max_tokens=1), length, 0, self._blocks[slot])

    def keep_residual(self, first: int, x: Tensor) -> None:
        """x [tokens, hidden] is the residual stream after the last layer, of the tokens from `first` on."""
        self._stream[first : first + len(x)] = x
        self._in_step = slice(first, first + len(x))

    def has_residual(self, first: int, last: int) -> bool:
        """Whether the latest window has computed tokens [first, last)."""
        return self._in_step.start <= first and last <= self._in_step.stop

    def residual(self, first: int, last: int) -> Tensor:
        """[tokens, hidden] of tokens [first, last), after the last layer."""
        return self._stream[first:last]

    def forward(self, tile: Tile) -> None:
        """The layer's forward pass of a tile."""
        rows, block, decoder = slice(tile.first, tile.last), self._decoder.blocks[tile.layer], self._decoder
        inputs, count = self._inputs_of(tile.first, tile.last), tile.last - tile.first
        if tile.layer == 0:
            x, added = decoder.embedded(inputs.batch.tokens), None
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
            self._inputs[first, last] = self._decoder.inputs(self.batch(first, last), self.cache)
        return self._inputs[first, last]

    def batch(self, first: int, last: int, num_before: int = 0) -> StepBatch:
        """Tokens [first, last); `num_before` rows of others will stand before theirs."""
        return self._batcher.batch(self._plan(first, last), num_before)

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
        blocks = torch.from_numpy(self._blocks[sequence][None, begin:end].astype(np.int64))
        gathered = self.cache.gather(layer, self.cache.gather_rows(blocks.to(self.cache.blocks.device)), 1)
        here = slice(first - begin * size, last - begin * size)
        keys, values = (part[0, :, here].clone() for part in gathered)
        return keys, values


def joined(decodes: StepBatch, window: StepBatch) -> StepBatch:
    """The flat batch of a step with a window of training: the rows of requests, then those of the window.

    `decodes` are rows that decode, all of a step; `window` has chunks in blocks of the same cache, and the
    padding of both. Sampled are the rows of `decodes`, and only these have adapters of requests.
    """
    count = len(decodes.tokens)
    spans = {}
    for sliding, each in decodes.spans.items():
        chunks = window.spans[sliding]
        assert isinstance(each, AttentionSpans)  # no kernels where adapters are trained
        assert isinstance(chunks, AttentionSpans)
        spans[sliding] = each.followed_by(chunks, count)
    return replace(
        decodes,
        tokens=torch.cat((decodes.tokens, window.tokens)),
        positions=torch.cat((decodes.positions, window.positions)),
        spans=spans,
        sampling_rows=torch.arange(count, device=decodes.tokens.device),
    )
