"""One step's flat batch where kernels of ours run: rows read straight from their KV blocks, so nothing is
gathered and little is sent.

Decode rows stand first, then prefill chunks, then padding. All that a step with chunks needs of the plan is
one copy to the device; a step of a run copies nothing. Called by the torch engine, and by steps of fixed
shape (`mixed_step`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

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


Sections = list[NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class MixedShape:
    """How many rows of each kind a step with chunks has at most; those that it does not use belong to the
    dead slot.
    """

    num_decodes: int  # rows that decode
    num_rows: int  # these, and rows of chunks
    num_padded: int  # all rows of the batch
    num_sampled: int
    num_tiles: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the sections: tokens, positions, slots, sampling rows, sampling slots, tiles."""
        return (*[self.num_padded] * 3, *[self.num_sampled] * 2, 4 * self.num_tiles)


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
        count, num_rows = plan.num_decodes, plan.num_decodes + len(plan.tokens)
        num_sampled, num_tiles = int(np.count_nonzero(plan.samples)), self.num_tiles(plan)
        shape = MixedShape(count, num_rows, padded(num_rows), num_sampled, num_tiles)
        sent = to_device(packed(self.sections(plan, shape), shape), self._state.device)
        adapters = adapter_rows(self._adapters, plan, np.arange(count))
        return self.mixed(sent, shape, adapters)

    def mixed(self, sent: Tensor, shape: MixedShape, adapters: tuple[AdaptedRows, ...] = ()) -> StepBatch:
        """The step whose `packed` sections are on the device. Tokens and positions of decode rows are on the
        device alone.
        """
        tokens, positions, slots, rows, sampling_slots, tiles = unpacked(sent, shape)
        if shape.num_decodes:
            self._state.fill_decode_inputs(slots, tokens, positions, shape.num_decodes)
        spans = self._spans(shape.num_decodes, shape.num_rows, slots, positions, tiles.view(-1, 4))
        order = np.arange(shape.num_sampled)
        return StepBatch(tokens, positions, spans, rows, sampling_slots, order, adapters)

    def num_tiles(self, plan: StepPlan) -> int:
        lengths = plan.lengths[plan.num_decodes :]
        return int((-(-lengths // self._chunk_rows)).sum())

    def most_tiles(self, num_tokens: int, num_chunks: int) -> int:
        """That so many chunks of so many tokens in all can have."""
        return num_tokens // self._chunk_rows + num_chunks

    def sections(self, plan: StepPlan, shape: MixedShape) -> Sections:
        """What a step with chunks needs of its plan, in the order of `MixedShape.sizes`."""
        return [*self._flat(plan, shape), *self._sampling(plan, shape), self._tiles(plan, shape).ravel()]

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

    def _flat(self, plan: StepPlan, shape: MixedShape) -> Sections:
        """Tokens, positions and slots, each [rows, with padding]; those of decode rows are not yet known."""
        count, first = plan.num_decodes, shape.num_decodes
        last = first + len(plan.tokens)
        tokens, positions = np.zeros(shape.num_padded, np.int64), np.zeros(shape.num_padded, np.int64)
        slots = np.full(shape.num_padded, self._state.dead_slot, np.int64)
        tokens[first:last] = plan.tokens
        slots[:count] = plan.slots[:count]
        positions[first:last], slots[first:last] = chunk_places(plan)
        return [tokens, positions, slots]

    def _sampling(self, plan: StepPlan, shape: MixedShape) -> Sections:
        """Rows of the batch and slots that sample, each [sampled, with padding]."""
        lasts = np.cumsum(plan.lengths) - 1
        lasts[plan.num_decodes :] += shape.num_decodes - plan.num_decodes
        rows = np.zeros(shape.num_sampled, np.int64)
        slots = np.full(shape.num_sampled, self._state.dead_slot, np.int64)
        count = int(np.count_nonzero(plan.samples))
        rows[:count], slots[:count] = lasts[plan.samples], plan.slots[plan.samples]
        return [rows, slots]

    def _tiles(self, plan: StepPlan, shape: MixedShape) -> NDArray[np.int64]:
        """[tiles, 4] as `PagedSpans` has them; those after the last one have no rows."""
        count = plan.num_decodes
        slots, starts, lengths = (
            part[count:].astype(np.int64) for part in (plan.slots, plan.starts, plan.lengths)
        )
        counts = -(-lengths // self._chunk_rows)
        offsets = self._chunk_rows * (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
        first_rows = shape.num_decodes + np.cumsum(lengths) - lengths
        firsts, starts, lengths, slots = (
            np.repeat(part, counts) for part in (first_rows, starts, lengths, slots)
        )
        rows = np.minimum(lengths - offsets, self._chunk_rows)
        tiles = np.zeros((shape.num_tiles, 4), np.int64)
        tiles[: len(rows)] = np.stack([firsts + offsets, rows, starts + offsets, slots], axis=1)
        return tiles


def packed(sections: Sections, shape: MixedShape) -> NDArray[np.int64]:
    """All `sections` in one array, for one copy."""
    values = np.zeros(packed_size(shape), np.int64)
    for begin, section in zip(_begins(shape), sections, strict=True):
        values[begin : begin + len(section)] = section
    return values


def unpacked(sent: Tensor, shape: MixedShape) -> list[Tensor]:
    return [sent[begin : begin + size] for begin, size in zip(_begins(shape), shape.sizes, strict=True)]


def packed_size(shape: MixedShape) -> int:
    return sum(_aligned(shape))


def _begins(shape: MixedShape) -> list[int]:
    """Where each section begins in the array that is sent."""
    return [0, *accumulate(_aligned(shape)[:-1])]


def _aligned(shape: MixedShape) -> list[int]:
    """How many numbers of it each section takes."""
    return [-(-size // ALIGNED) * ALIGNED for size in shape.sizes]
