"""One step's flat batch: which tokens, where their KV goes, and which KV each row reads, as device tensors.

Made from a plan and the slot state, once a step, for all layers. Decode rows stand first, in order of their length, so that rows of
similar length are neighbours and are padded to their own longest; prefill chunks follow. In a steady step nothing comes from the
host: the order of the slots stays as it is. Called by the torch engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.attention import DecodeGroup, PrefillSpan, Spans
from python_backends.engine.kv_cache import KVCache
from python_backends.engine.slot_state import SlotState
from python_backends.request import Ids
from python_backends.step import StepPlan

MIN_SAVING = 256  # tokens read in vain; another group for less costs more than it saves


@dataclass(frozen=True, slots=True)
class StepBatch:
    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    write: Tensor  # [tokens, 2, kv_heads] rows of the KV cache
    spans: Spans
    sampling_rows: Tensor | None  # [sampled] of the batch; None: all rows
    sampling_slots: Tensor  # [sampled]
    order: NDArray[np.intp]  # [sampled] sampled row i is the plan's order[i]-th span that samples


@dataclass(frozen=True, slots=True)
class _Rows:
    """A part of the batch: tokens, their positions and the blocks that take their KV, each [rows]."""

    tokens: Tensor
    positions: Tensor
    blocks: Tensor


class StepBatcher:
    """Keeps the device's list of decoding slots from step to step."""

    def __init__(self, state: SlotState, cache: KVCache) -> None:
        self._state = state
        self._cache = cache
        self._block_tokens = cache.shape.block_tokens
        self._host_slots: Ids = np.zeros(0, np.int32)
        self._slots = self._put(self._host_slots)

    def batch(self, plan: StepPlan) -> StepBatch:
        count = plan.num_decodes
        order = np.argsort(plan.starts[:count], kind="stable")
        slots = self._decode_slots(plan.slots[order])
        rows, groups = self._decodes(slots, plan.starts[order])
        sampling_rows: Tensor | None = None
        prefills: tuple[PrefillSpan, ...] = ()
        if len(plan.slots) > count:
            rows = _joined(rows, self._chunks(plan, count))
            prefills = self._prefills(plan, count)
            sampling_rows, slots = self._sampling(plan, count, slots)
        write = self._cache.write_rows(rows.blocks, rows.positions % self._block_tokens)
        order = np.concatenate([order, np.arange(count, np.count_nonzero(plan.samples))])
        return StepBatch(rows.tokens, rows.positions, write, Spans(groups, prefills), sampling_rows, slots, order)

    def _decode_slots(self, slots: Ids) -> Tensor:
        if not np.array_equal(slots, self._host_slots):
            self._host_slots, self._slots = slots, self._put(slots)
        return self._slots

    def _decodes(self, slots: Tensor, starts: Ids) -> tuple[_Rows, tuple[DecodeGroup, ...]]:
        """`starts` [rows] ascending: the positions as the plan knows them, no less than those of the device."""
        tokens, positions = self._state.decode_inputs(slots)
        table = self._state.table[slots]  # [rows, blocks]
        rows = _Rows(tokens, positions, table.gather(1, (positions // self._block_tokens)[:, None])[:, 0])
        ends = group_ends(starts + 1)
        return rows, tuple(self._group(first, last, table, positions, starts) for first, last in zip([0, *ends], ends, strict=False))

    def _group(self, first: int, last: int, table: Tensor, positions: Tensor, starts: Ids) -> DecodeGroup:
        num_blocks = int(starts[last - 1]) // self._block_tokens + 1
        gather = self._cache.gather_rows(table[first:last, :num_blocks])
        mask = self._mask(positions[first:last], num_blocks)[:, None, None]
        return DecodeGroup(first, last, gather, mask)

    def _mask(self, positions: Tensor, num_blocks: int) -> Tensor:
        """[rows, tokens]: 0 up to and with its own position, −inf behind."""
        tokens = torch.arange(num_blocks * self._block_tokens, device=positions.device)
        mask = torch.zeros((len(positions), len(tokens)), dtype=self._cache.shape.dtype, device=positions.device)
        return mask.masked_fill_(tokens > positions[:, None], float("-inf"))

    def _chunks(self, plan: StepPlan, count: int) -> _Rows:
        starts, lengths = plan.starts[count:], plan.lengths[count:]
        offsets = np.arange(len(plan.tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        positions = np.repeat(starts, lengths) + offsets
        slots = np.repeat(plan.slots[count:], lengths)
        device = self._put(np.stack([plan.tokens, positions, slots]))
        return _Rows(device[0], device[1], self._state.table[device[2], device[1] // self._block_tokens])

    def _prefills(self, plan: StepPlan, count: int) -> tuple[PrefillSpan, ...]:
        lasts = np.cumsum(plan.lengths)
        spans = zip(plan.slots.tolist(), plan.starts.tolist(), plan.lengths.tolist(), lasts.tolist(), strict=True)
        return tuple(self._prefill(*span) for span in list(spans)[count:])

    def _prefill(self, slot: int, start: int, length: int, last: int) -> PrefillSpan:
        if start == 0:
            return PrefillSpan(last - length, last, None, None)
        num_blocks = -(-(start + length) // self._block_tokens)
        positions = torch.arange(start, start + length, device=self._state.device)
        gather = self._cache.gather_rows(self._state.table[slot, None, :num_blocks])
        return PrefillSpan(last - length, last, gather, self._mask(positions, num_blocks))

    def _sampling(self, plan: StepPlan, count: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the batch and slots that sample; `slots` are those of the decode rows, which all do."""
        samples = plan.samples[count:]
        lasts = np.cumsum(plan.lengths)[count:][samples] - 1
        device = self._put(np.stack([lasts, plan.slots[count:][samples]]))
        decodes = torch.arange(count, device=self._state.device)
        return torch.cat((decodes, device[0])), torch.cat((slots, device[1]))

    def _put(self, values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self._state.device)


def group_ends(lengths: Ids) -> list[int]:
    """Where groups of decode rows end, for `lengths` ascending: split in two wherever that saves enough reading."""
    count = len(lengths)
    if count == 0:
        return []
    saved = np.arange(1, count + 1) * (lengths[-1] - lengths)  # [rows] by a split behind row i
    split = int(saved.argmax()) + 1
    if saved[split - 1] < MIN_SAVING:
        return [count]
    return group_ends(lengths[:split]) + [split + end for end in group_ends(lengths[split:])]


def _joined(first: _Rows, second: _Rows) -> _Rows:
    return _Rows(
        torch.cat((first.tokens, second.tokens)),
        torch.cat((first.positions, second.positions)),
        torch.cat((first.blocks, second.blocks)),
    )
