"""The inputs of decode rows out of the slot state, and the tokens that were chosen into it, as kernels in the
Triton language: one launch each.

`SlotState.decode_inputs` and `SlotState.append` say what they do. Owns nothing; imported only where it runs
(see `kernel_trial`), and called by the slot state.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from python_backends.engine.slots.columns import Column
from python_backends.nouns.request import Finish

ROWS = 128  # in a program


def last_tokens(counts: Tensor, slots: Tensor, tokens: Tensor, positions: Tensor, count: int) -> None:
    """The first `count` of `slots` [rows] fill as many of `tokens` and `positions` [rows]."""
    _last_tokens[(triton.cdiv(count, ROWS),)](
        counts,
        slots,
        tokens,
        positions,
        count,
        WIDTH=counts.shape[1],
        LAST_TOKEN=int(Column.LAST_TOKEN),
        LENGTH=int(Column.LENGTH),
        TILE=ROWS,
    )


def append(counts: Tensor, stop_ids: Tensor, slots: Tensor, tokens: Tensor, out: Tensor) -> None:
    """out [2, rows]: tokens and finishes of `slots` [rows]. A slot that comes twice has ended."""
    _append[(len(slots),)](
        counts,
        stop_ids,
        slots,
        tokens,
        out,
        WIDTH=counts.shape[1],
        STOPS=stop_ids.shape[1],
        PADDED=triton.next_power_of_2(stop_ids.shape[1]),
        COLUMNS=tuple(int(column) for column in APPENDED),
        STOPPED=int(Finish.STOP),
        FULL=int(Finish.LENGTH),
    )


APPENDED = (
    Column.LAST_TOKEN,
    Column.LENGTH,
    Column.OUTPUTS,
    Column.MAX_LENGTH,
    Column.MIN_TOKENS,
    Column.ENDED,
)


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _last_tokens(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    counts,
    slots,
    tokens,
    positions,
    count,
    WIDTH: tl.constexpr,  # noqa: N803
    LAST_TOKEN: tl.constexpr,  # noqa: N803
    LENGTH: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    place = counts + tl.load(slots + row, mask=row < count, other=0) * WIDTH
    tl.store(tokens + row, tl.load(place + LAST_TOKEN, mask=row < count, other=0), mask=row < count)
    tl.store(positions + row, tl.load(place + LENGTH, mask=row < count, other=1) - 1, mask=row < count)


@triton.jit  # type: ignore[untyped-decorator]
def _append(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    counts,
    stop_ids,
    slots,
    tokens,
    out,
    WIDTH: tl.constexpr,  # noqa: N803
    STOPS: tl.constexpr,  # noqa: N803
    PADDED: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    STOPPED: tl.constexpr,  # noqa: N803
    FULL: tl.constexpr,  # noqa: N803
):
    """One row. Nothing of a slot that had ended changes."""
    row, stop = tl.program_id(0), tl.arange(0, PADDED)
    slot, token = tl.load(slots + row), tl.load(tokens + row)
    place = counts + slot * WIDTH
    last_token, length, outputs = place + COLUMNS[0], place + COLUMNS[1], place + COLUMNS[2]
    is_live = tl.load(place + COLUMNS[5]) == 0
    num_tokens, num_outputs = tl.load(length), tl.load(outputs)
    ids = tl.load(stop_ids + slot * STOPS + stop, mask=stop < STOPS, other=-1)
    is_stop = (tl.max((ids == token).to(tl.int32), 0) > 0) & (num_outputs >= tl.load(place + COLUMNS[4]))
    is_full = num_tokens + 1 >= tl.load(place + COLUMNS[3])
    finish = tl.where(is_stop, STOPPED, tl.where(is_full, FULL, 0))
    tl.store(out + row, tl.where(is_live, token, 0))
    tl.store(out + tl.num_programs(0) + row, tl.where(is_live, finish, 0))
    tl.store(last_token, token, mask=is_live)
    tl.store(length, num_tokens + 1, mask=is_live)
    tl.store(outputs, num_outputs + 1, mask=is_live)
    tl.store(place + COLUMNS[5], (finish != 0).to(tl.int64), mask=is_live)
