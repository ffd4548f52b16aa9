"""Divides the tokens that decode rows see into parts of similar size, on the device, by a kernel in the
Triton language: a long row in a large batch has many parts, and a short one has one.

Made once a step for all layers of one window. Owns nothing; imported only where it runs (see
`kernel_trial`), and called by the paged batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from python_backends.engine.model.description import Heads
from python_backends.engine.torch.attention_spans import Parts

WANTED_PROGRAMS = 512  # four on each of an H100's multiprocessors: more were slower there
MOST_PARTS = 32  # of a row, on average
PART_TOKENS = 64  # a part has a multiple of it: a tile of keys in bfloat16


def divided(positions: Tensor, count: int, most_rows: int, window: int | None, heads: Heads) -> Parts:
    """What the first `count` rows of `positions` [rows] see. `most_rows`: the most that any step has."""
    device, extra = positions.device, extra_parts(count, heads.num_kv_heads)
    num_items, num_heads = count + extra, heads.num_query_heads

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    parts = Parts(
        items=empty(num_items, 5, dtype=torch.int32),
        weighted=empty(num_items, num_heads, heads.head_dim),
        maxima=empty(num_items, num_heads),
        sums=empty(num_items, num_heads),
        arrived=empty(count, heads.num_kv_heads, dtype=torch.int32),
    )
    _divide[(1,)](
        positions,
        parts.items,
        parts.arrived,
        count,
        num_items,
        extra,
        window or 0,
        ROWS=triton.next_power_of_2(most_rows),
        KV_HEADS=heads.num_kv_heads,
        PART=PART_TOKENS,
        HAS_WINDOW=window is not None,
    )
    return parts


def extra_parts(count: int, num_kv_heads: int) -> int:
    """How many parts there may be besides one for each of `count` rows: none is larger than what all rows see
    divided by this, rounded up.
    """
    return max(1, min(WANTED_PROGRAMS // num_kv_heads, MOST_PARTS * count))


@triton.jit(do_not_specialize=["count", "num_items", "extra"])  # type: ignore[untyped-decorator]
def _divide(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    positions,
    items,
    arrived,
    count,
    num_items,
    extra,
    window,
    ROWS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    PART: tl.constexpr,  # noqa: N803
    HAS_WINDOW: tl.constexpr,  # noqa: N803
):
    """One program for all rows."""
    row = tl.arange(0, ROWS)
    is_row = row < count
    end = tl.load(positions + row, mask=is_row, other=-1).to(tl.int32) + 1
    begin = tl.maximum(end - window, 0) if HAS_WINDOW else end * 0
    length = end - begin
    size = tl.cdiv(tl.cdiv(tl.sum(length, 0), extra), PART) * PART
    num_parts = tl.cdiv(length, size)
    first = tl.cumsum(num_parts, 0) - num_parts
    for part in range(0, tl.max(num_parts, 0)):
        item, is_part = items + (first + part) * 5, part < num_parts
        tl.store(item, row, mask=is_part)
        tl.store(item + 1, begin + part * size, mask=is_part)
        tl.store(item + 2, tl.minimum(begin + (part + 1) * size, end), mask=is_part)
        tl.store(item + 3, first, mask=is_part)
        tl.store(item + 4, num_parts, mask=is_part)
    num_used = tl.sum(num_parts, 0)
    for start in range(0, num_items, ROWS):
        item = start + row
        tl.store(items + item * 5 + 4, row * 0, mask=(item >= num_used) & (item < num_items))
    for head in range(KV_HEADS):
        tl.store(arrived + row * KV_HEADS + head, row * 0, mask=is_row)
