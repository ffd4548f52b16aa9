"""Steps of fixed shape that have prompts: rows that decode, then rows of chunks, padded with the dead slot.

A step that is launched kernel by kernel takes the host 10 ms for a model of 32 layers (H100), longer than the
device computes a few hundred tokens. Where the device takes longer than that, its queue is full before the
step is launched, so the host waits until the step nearly ends, and the next one is late by the time of its
plan (docs/notebook/cuda.md). So steps with prompts, too, are captured at the start as graphs over memory that
stays in its place; what they need of a plan is one copy into it. Only where our kernels run. Called by the
step launcher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from tqdm import tqdm

from python_backends.engine.device import send
from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch.decode_step import Bucket, Step
from python_backends.engine.torch.decoder import Decoder
from python_backends.engine.torch.paged_batch import MixedShape, PagedBatcher, packed, packed_size, unpacked
from python_backends.nouns.step import StepPlan

LEAST_TOKENS = 64  # of chunks; four sizes an octave above
LEAST_CHUNKS = 16  # of a step, at most, however few its tokens
CHUNK_TOKENS = 32  # of more tokens: a chunk for so many
FEW = 8  # small steps also come with rows for an eighth of the slots
SMALL = 512  # tokens of chunks; beyond them, rows of padding that would decode do not matter


@dataclass(slots=True)
class MixedBucket:
    shape: MixedShape
    num_tokens: int  # of chunks, at most
    num_chunks: int  # at most
    sent: Tensor  # the sections of a plan, on the device
    bucket: Bucket


class MixedSteps:
    """`capture` as for `DecodeSteps`."""

    def __init__(
        self,
        decoder: Decoder,
        state: SlotState,
        cache: KVCache,
        batcher: PagedBatcher,
        capture: Callable[[Step], Step] | None,
        token_budget: int,
    ) -> None:
        self._decoder, self._cache, self._batcher = decoder, cache, batcher
        slots, sizes = state.dead_slot, chunk_sizes(token_budget)
        few, small = -(-slots // FEW), [size for size in sizes if size <= SMALL]
        shapes = [*((few, size) for size in small if few < slots), *((slots, size) for size in sizes)]
        self._buckets = [self._made(*shape, state) for shape in shapes]
        self._logits: Tensor | None = None  # [rows, vocabulary] of the last step, whatever its bucket
        if capture is not None:
            for each in tqdm(self._buckets[::-1], "capturing steps with prompts"):
                each.bucket.capture(capture, partial(self._forward, each), state)

    def bucket(self, plan: StepPlan) -> MixedBucket | None:
        """The smallest one that holds `plan`, filled with it; None: there is none."""
        num_chunks = len(plan.slots) - plan.num_decodes
        for each in self._buckets:
            holds_rows = plan.num_decodes <= each.shape.num_decodes and len(plan.tokens) <= each.num_tokens
            if holds_rows and num_chunks <= each.num_chunks:
                send(packed(self._batcher.sections(plan, each.shape), each.shape), each.sent)
                return each
        return None

    def forward(self, each: MixedBucket) -> Tensor:
        """The logits [rows, vocabulary]; those of the plan's rows that sample come first."""
        return each.bucket.forward(partial(self._forward, each))

    def _forward(self, each: MixedBucket) -> Tensor:
        batch = self._batcher.mixed(each.sent, each.shape)
        rows = batch.sampling_rows
        logits, each.bucket.states = self._decoder.forward_with_states(batch, self._cache, rows)
        return self._kept(logits)

    def _kept(self, logits: Tensor) -> Tensor:
        """In the memory that all buckets share: each one's own would take hundreds of megabytes."""
        if self._logits is None:
            most_rows = max(each.shape.num_sampled for each in self._buckets)
            self._logits = logits.new_empty((most_rows, logits.shape[1]))
        return self._logits[: len(logits)].copy_(logits)

    def _made(self, num_decodes: int, num_tokens: int, state: SlotState) -> MixedBucket:
        rows, num_chunks = num_decodes + num_tokens, max(LEAST_CHUNKS, num_tokens // CHUNK_TOKENS)
        tiles = self._batcher.most_tiles(num_tokens, num_chunks)
        shape = MixedShape(num_decodes, rows, rows, num_decodes + num_chunks, tiles)
        sent = torch.zeros(packed_size(shape), dtype=torch.int64, device=state.device)
        _, _, _, _, sampling_slots, _ = unpacked(sent, shape)
        sampling_slots.fill_(state.dead_slot)
        return MixedBucket(shape, num_tokens, num_chunks, sent, Bucket(sampling_slots))


def chunk_sizes(token_budget: int) -> list[int]:
    """Four an octave, until one holds `token_budget`."""
    sizes = [LEAST_TOKENS]
    while sizes[-1] < token_budget:
        sizes.append(sizes[-1] + max(LEAST_TOKENS, (1 << sizes[-1].bit_length() - 1) // 4))
    return sizes
