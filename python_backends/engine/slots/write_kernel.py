"""All that the slot operations of a plan write, put into place by one kernel in the Triton language.

`SlotWrites` says what that is, and calls this. Owns nothing; imported only where it runs (see
`kernel_trial`).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

WRITES = 128  # in a program


def write(writes: Tensor, targets: tuple[Tensor, ...]) -> None:
    """writes [3, n] int64: which of four targets, the place in it, the value; the
    last target is float32, whose values are bits.
    """
    count = writes.shape[1]
    _write[(triton.cdiv(count, WRITES),)](writes, *targets, count, TILE=WRITES)


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _write(writes, first, second, third, fourth, count, TILE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803, PLR0913
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    which = tl.load(writes + index, mask=index < count, other=-1)
    place = tl.load(writes + count + index, mask=index < count, other=0)
    value = tl.load(writes + 2 * count + index, mask=index < count, other=0)
    tl.store(first + place, value, mask=which == 0)
    tl.store(second + place, value, mask=which == 1)
    tl.store(third + place, value, mask=which == 2)
    tl.store(fourth + place, value.to(tl.int32).to(tl.float32, bitcast=True), mask=which == 3)
