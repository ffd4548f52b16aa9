"""One step's flat batch: which tokens, where their KV goes, and which KV each row reads, as device tensors.

Made from a plan and the slot state, once a step, for all layers. Decode rows stand first, in order of their
length, so that rows of similar length are neighbours and are padded to their own longest; prefill chunks
follow, then padding. In a step of a run nothing comes from the host: the order of the slots stays as it is.
Layers with a sliding window read only the blocks that it touches, row by row; blocks after it stay with their
sequence. Called by the torch engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.device import to_device
from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.kv.padding import padded
from python_backends.engine.slots.row_index import RowIndex
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch.adapters.slot_adapters import AdaptedRows, SlotAdapters
from python_backends.engine.torch.attention_spans import (
    AttentionSpans,
    DecodeGroup,
    PagedSpans,
    PrefillSpan,
    attention_mask,
)
from python_backends.nouns.request import Ids
from python_backends.nouns.step import StepPlan

MIN_SAVING = 256  # tokens read in vain; another group for less costs more than it saves


@dataclass(frozen=True, slots=True)
class StepBatch:
    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    spans: Mapping[int | None, AttentionSpans | PagedSpans]  # by sliding window
    sampling_rows: Tensor | None  # [sampled] of the batch; None: all rows
    sampling_slots: Tensor  # [sampled]
    order: NDArray[np.intp]  # [sampled] sampled row i is the plan's order[i]-th span that samples
    adapters: tuple[AdaptedRows, ...] = ()  # of the rows that have one


@dataclass(frozen=True, slots=True)
class _Rows:
    """A part of the batch: tokens, their positions and the blocks that take their KV, each [rows]."""

    tokens: Tensor
    positions: Tensor
    blocks: Tensor


class Batcher(Protocol):
    def batch(self, plan: StepPlan) -> StepBatch: ...

    def decodes(self, slots: Tensor, longest: int) -> StepBatch:
        """A step in which all `slots` [rows] decode, none of them longer than `longest` tokens or with an
        adapter.
        """
        ...


class StepBatcher:
    """Keeps the device's list of decoding slots from step to step. `windows` are those of the model's layers,
    each once.
    """

    def __init__(
        self,
        state: SlotState,
        cache: KVCache,
        windows: tuple[int | None, ...] = (None,),
        adapters: SlotAdapters | None = None,
    ) -> None:
        self._state = state
        self._cache = cache
        self._windows = windows
        self._block_tokens = cache.shape.block_tokens
        self._adapters = adapters
        self._slots = RowIndex(state.device)

    def batch(self, plan: StepPlan) -> StepBatch:
        count = plan.num_decodes
        order = np.argsort(plan.starts[:count], kind="stable")
        slots = self._slots.of(plan.slots[order])
        tokens, positions = self._state.decode_inputs(slots)
        table = self._state.table[slots]  # [rows, blocks]
        rows = _Rows(tokens, positions, table.gather(1, (positions // self._block_tokens)[:, None])[:, 0])
        sampling_rows: Tensor | None = None
        num_padding = 0
        if len(plan.slots) > count:
            num_rows = count + len(plan.tokens)
            num_padding = padded(num_rows) - num_rows
            rows = _joined(rows, self._chunks(plan), self._padding(num_padding))
            sampling_rows, slots = self._sampling(plan, count, slots)
        write = self._cache.write_rows(rows.blocks, rows.positions % self._block_tokens)
        spans = self._spans(plan, table, positions, plan.starts[order], write, num_padding)
        adapters = adapter_rows(self._adapters, plan, order)
        order = np.concatenate([order, np.arange(count, np.count_nonzero(plan.samples))])
        return StepBatch(rows.tokens, rows.positions, spans, sampling_rows, slots, order, adapters)

    def decodes(self, slots: Tensor, longest: int) -> StepBatch:
        """A step in which all `slots` [rows] decode, none of them longer than `longest` tokens or with an
        adapter: of the same shape for the same two.
        """
        tokens, positions = self._state.decode_inputs(slots)
        table, size = self._state.table[slots], self._block_tokens
        starts = np.full(len(slots), min(longest, table.shape[1] * size) - 1, np.int32)
        blocks = table.gather(1, (positions // size)[:, None])[:, 0]
        write = self._cache.write_rows(blocks, positions % size)
        spans = {
            window: AttentionSpans(self._decodes(table, positions, starts, window), (), write)
            for window in self._windows
        }
        return StepBatch(tokens, positions, spans, None, slots, np.arange(len(slots)))

    def _spans(
        self,
        plan: StepPlan,
        table: Tensor,
        positions: Tensor,
        starts: Ids,
        write: Tensor,
        num_padding: int,
    ) -> dict[int | None, AttentionSpans]:
        """What layers of each window read; `starts` [rows] ascending: positions as
        the plan knows them, no less than the device's.
        """
        longest = int((plan.starts + plan.lengths).max())
        made: dict[int | None, AttentionSpans] = {}
        for window in self._windows:
            effective = window if window is not None and window < longest else None
            if effective not in made:
                decodes = self._decodes(table, positions, starts, effective)
                made[effective] = AttentionSpans(decodes, self._prefills(plan, effective), write, num_padding)
            made[window] = made[effective]
        return made

    def _decodes(
        self, table: Tensor, positions: Tensor, starts: Ids, window: int | None
    ) -> tuple[DecodeGroup, ...]:
        ends = group_ends(starts + 1 if window is None else np.minimum(starts + 1, window))
        groups = zip([0, *ends], ends, strict=False)
        if window is None:
            return tuple(self._group(first, last, table, positions, starts) for first, last in groups)
        return tuple(
            self._window_group(first, last, table, positions, starts, window) for first, last in groups
        )

    def _group(self, first: int, last: int, table: Tensor, positions: Tensor, starts: Ids) -> DecodeGroup:
        num_blocks = int(starts[last - 1]) // self._block_tokens + 1
        gather = self._own_rows(table, positions, slice(first, last), self._arange(num_blocks))
        tokens = self._arange(num_blocks * self._block_tokens)
        mask = attention_mask(positions[first:last], tokens, None, self._cache.shape.dtype)
        return DecodeGroup(first, last, gather, mask[:, None, None])

    def _window_group(
        self, first: int, last: int, table: Tensor, positions: Tensor, starts: Ids, window: int
    ) -> DecodeGroup:
        """Each row reads from the block on in which its own window begins."""
        size, rows = self._block_tokens, slice(first, last)
        num_blocks = min(int(starts[last - 1]) // size, (window + size - 2) // size) + 1
        begins = (positions[rows] - (window - 1)).clamp_(min=0)[:, None] // size  # [rows, 1]
        gather = self._own_rows(table, positions, rows, begins + self._arange(num_blocks))
        tokens = begins * size + self._arange(num_blocks * size)
        mask = attention_mask(positions[rows], tokens, window, self._cache.shape.dtype)
        return DecodeGroup(first, last, gather, mask[:, None, None])

    def _own_rows(self, table: Tensor, positions: Tensor, rows: slice, columns: Tensor) -> Tensor:
        """Where `rows` read the blocks in `columns` of their table: after its last block, a row reads that
        one again. What is hidden is read all the same, and hides nothing if it is no number: it is to be the
        row's own.
        """
        last = (positions[rows] // self._block_tokens)[:, None]
        return self._cache.gather_rows(table[rows].gather(1, torch.minimum(columns, last)))

    def _arange(self, count: int, first: int = 0) -> Tensor:
        return torch.arange(first, first + count, device=self._state.device)

    def _chunks(self, plan: StepPlan) -> _Rows:
        device = self._put(np.stack([plan.tokens, *chunk_places(plan)]))
        return _Rows(device[0], device[1], self._state.table[device[2], device[1] // self._block_tokens])

    def _padding(self, count: int) -> _Rows:
        nothing = torch.zeros(count, dtype=torch.int64, device=self._state.device)
        return _Rows(nothing, nothing, self._state.table[self._state.dead_slot, :1].expand(count))

    def _prefills(self, plan: StepPlan, window: int | None) -> tuple[PrefillSpan, ...]:
        lasts = np.cumsum(plan.lengths)
        spans = zip(
            plan.slots.tolist(), plan.starts.tolist(), plan.lengths.tolist(), lasts.tolist(), strict=True
        )
        return tuple(self._prefill(*span, window) for span in list(spans)[plan.num_decodes :])

    def _prefill(self, slot: int, start: int, length: int, last: int, window: int | None) -> PrefillSpan:
        if start == 0 and (window is None or length <= window):
            return PrefillSpan(last - length, last, None, None)
        size = self._block_tokens
        begin, end = max(0, start - window + 1) // size if window else 0, -(-(start + length) // size)
        gather = self._cache.gather_rows(self._state.table[slot, None, begin:end])
        positions, tokens = self._arange(length, start), self._arange((end - begin) * size, begin * size)
        mask = attention_mask(positions, tokens, window, self._cache.shape.dtype)
        return PrefillSpan(last - length, last, gather, mask)

    def _sampling(self, plan: StepPlan, count: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the batch and slots that sample; `slots` are those of the decode rows, which all do."""
        samples = plan.samples[count:]
        lasts = np.cumsum(plan.lengths)[count:][samples] - 1
        device = self._put(np.stack([lasts, plan.slots[count:][samples]]))
        decodes = torch.arange(count, device=self._state.device)
        return torch.cat((decodes, device[0])), torch.cat((slots, device[1]))

    def _put(self, values: NDArray[np.generic]) -> Tensor:
        return to_device(values.astype(np.int64), self._state.device)


def chunk_places(plan: StepPlan) -> tuple[NDArray[np.int64], Ids]:
    """Positions and slots of the tokens of all chunks, each [prefill tokens]."""
    count = plan.num_decodes
    starts, lengths = plan.starts[count:], plan.lengths[count:]
    firsts = np.cumsum(lengths) - lengths
    positions = np.repeat(starts - firsts, lengths) + np.arange(len(plan.tokens))
    return positions, np.repeat(plan.slots[count:], lengths)


def adapter_rows(
    adapters: SlotAdapters | None, plan: StepPlan, order: NDArray[np.intp]
) -> tuple[AdaptedRows, ...]:
    """Of a batch with the decode rows of `plan` in `order`, then its chunks."""
    if adapters is None or not adapters.is_used(plan.slots):
        return ()
    count = len(order)
    chunks = np.repeat(plan.slots[count:], plan.lengths[count:])
    return adapters.groups(np.concatenate([plan.slots[order], chunks]))


def group_ends(lengths: Ids) -> list[int]:
    """Where groups of decode rows end, for `lengths` ascending: split
    in two wherever that saves enough reading.
    """
    count = len(lengths)
    if count == 0:
        return []
    saved = np.arange(1, count + 1) * (lengths[-1] - lengths)  # [rows] by a split after row i
    split = int(saved.argmax()) + 1
    if saved[split - 1] < MIN_SAVING:
        return [count]
    return group_ends(lengths[:split]) + [split + end for end in group_ends(lengths[split:])]


def _joined(*parts: _Rows) -> _Rows:
    return _Rows(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.positions for part in parts]),
        torch.cat([part.blocks for part in parts]),
    )
