"""One step's flat batch where kernels of ours run: rows read straight from their KV blocks, so nothing is
gathered and little is sent.

Decode rows stand first, then prefill chunks, then padding. All that a step with chunks needs of the plan is
one copy to the device; a step of a run copies nothing. Called by the torch engine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.device import to_device
from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.kv.padding import padded
from python_backends.engine.model.description import Heads
from python_backends.engine.slots.row_index import RowIndex
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch.adapters.slot_adapters import AdaptedRows, SlotAdapters
from python_backends.engine.torch.attention_spans import PagedSpans, chunk_rows
from python_backends.engine.torch.paged_parts import divided
from python_backends.engine.torch.step_batch import StepBatch, adapter_rows, chunk_places
from python_backends.nouns.step import StepPlan

ALIGNED = 2  # int64: each section of what is sent begins at a multiple of 16 bytes, as kernels were compiled


class PagedBatcher:
    """Keeps the device's list of decoding slots from step to step. `windows` are those of the model's layers,
    each once.
    """

    def __init__(
        self,
        state: SlotState,
        cache: KVCache,
        heads: Heads,
        windows: tuple[int | None, ...] = (None,),
        adapters: SlotAdapters | None = None,
    ) -> None:
        self._state, self._heads, self._windows, self._adapters = state, heads, windows, adapters
        self._chunk_rows = chunk_rows(cache.shape.dtype)
        self._slots = RowIndex(state.device)

    def batch(self, plan: StepPlan) -> StepBatch:
        if len(plan.tokens):
            return self._mixed(plan)
        order = np.arange(len(plan.slots))
        return self._decodes(self._slots.of(plan.slots), adapter_rows(self._adapters, plan, order))

    def decodes(self, slots: Tensor, longest: int) -> StepBatch:
        """A step in which all `slots` [rows] decode, none of them with an adapter, whatever their lengths:
        nothing comes from the host.
        """
        return self._decodes(slots, ())

    def _decodes(self, slots: Tensor, adapters: tuple[AdaptedRows, ...]) -> StepBatch:
        tokens, positions = self._state.decode_inputs(slots)
        spans = self._spans(len(slots), len(slots), slots, positions, None)
        return StepBatch(tokens, positions, spans, None, slots, np.arange(len(slots)), adapters)

    def _mixed(self, plan: StepPlan) -> StepBatch:
        """Tokens and positions of decode rows are on the device alone."""
        count, num_rows = plan.num_decodes, plan.num_decodes + len(plan.tokens)
        sampled = int(np.count_nonzero(plan.samples))
        tokens, positions, slots, rows, sampling_slots, tiles = self._sent(
            *self._flat(plan, num_rows), *self._sampling(plan), self._tiles(plan).ravel()
        )
        if count:
            self._state.fill_decode_inputs(slots, tokens, positions, count)
        spans = self._spans(count, num_rows, slots, positions, tiles.view(-1, 4))
        order = np.arange(sampled)
        adapters = adapter_rows(self._adapters, plan, np.arange(count))
        return StepBatch(tokens, positions, spans, rows, sampling_slots, order, adapters)

    def _spans(
        self, count: int, num_rows: int, slots: Tensor, positions: Tensor, tiles: Tensor | None
    ) -> dict[int | None, PagedSpans]:
        made = {}
        most_rows = self._state.dead_slot + 1
        for window in self._windows:
            parts = divided(positions, count, most_rows, window, self._heads) if count else None
            made[window] = PagedSpans(
                count, num_rows, slots, positions, self._state.table, window, parts, tiles
            )
        return made

    def _flat(self, plan: StepPlan, num_rows: int) -> tuple[NDArray[np.int64], ...]:
        """Tokens, positions and slots, each [rows, with padding]; those of decode rows are not yet known."""
        count, total = plan.num_decodes, padded(num_rows)
        tokens, positions = np.zeros(total, np.int64), np.zeros(total, np.int64)
        slots = np.full(total, self._state.dead_slot, np.int64)
        tokens[count:num_rows] = plan.tokens
        slots[:count] = plan.slots[:count]
        positions[count:num_rows], slots[count:num_rows] = chunk_places(plan)
        return tokens, positions, slots

    def _sampling(self, plan: StepPlan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of the batch and slots that sample, each [sampled]."""
        lasts = np.cumsum(plan.lengths)[plan.samples] - 1
        return lasts.astype(np.int64), plan.slots[plan.samples].astype(np.int64)

    def _tiles(self, plan: StepPlan) -> NDArray[np.int64]:
        """[tiles, 4] as `PagedSpans` has them."""
        count = plan.num_decodes
        slots, starts, lengths = (
            part[count:].astype(np.int64) for part in (plan.slots, plan.starts, plan.lengths)
        )
        counts = -(-lengths // self._chunk_rows)
        offsets = self._chunk_rows * (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
        firsts, starts, lengths, slots = (
            np.repeat(part, counts) for part in (count + np.cumsum(lengths) - lengths, starts, lengths, slots)
        )
        rows = np.minimum(lengths - offsets, self._chunk_rows)
        return np.stack([firsts + offsets, rows, starts + offsets, slots], axis=1)

    def _sent(self, *sections: NDArray[np.int64]) -> list[Tensor]:
        """All `sections` by one copy."""
        sizes = [-(-len(section) // ALIGNED) * ALIGNED for section in sections]
        packed = np.zeros(sum(sizes), np.int64)
        begins = np.cumsum(sizes) - sizes
        for begin, section in zip(begins.tolist(), sections, strict=True):
            packed[begin : begin + len(section)] = section
        device = to_device(packed, self._state.device)
        return [
            device[begin : begin + len(section)]
            for begin, section in zip(begins.tolist(), sections, strict=True)
        ]
