"""The product of rows with the weights of their experts, as a kernel in the Triton language: where the rows
of an expert end is read on the device, so that a captured step holds for any choice.

Owns nothing; imported only where it runs (see `kernel_trial`), and called by `ChosenExperts`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from python_backends.engine.torch.int8_kernel import OUTPUTS, inputs_of

ROWS = 64  # of one expert in a program: one tile, so that one kernel is compiled for any number of rows


def expert_product(x: Tensor, ends: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    """y [rows, out] = x·Wᵀ with the W of the expert of each row, for x [rows, in] in the order of the
    experts, whose rows end at `ends` [experts]; weight [experts, out, in], int8 with scales [experts, out].
    """
    num_experts, num_outputs, num_inputs = weight.shape
    out = torch.empty((len(x), num_outputs), dtype=x.dtype, device=x.device)
    tiles = min(len(x), len(x) // ROWS + num_experts)  # more than that have no rows
    _expert_product[(tiles, triton.cdiv(num_outputs, OUTPUTS))](
        x,
        ends,
        weight,
        weight if scale is None else scale,
        out,
        num_outputs,
        num_inputs,
        EXPERTS=num_experts,
        PADDED=triton.next_power_of_2(num_experts),
        HAS_SCALE=scale is not None,
        ROWS=ROWS,
        OUTPUTS=OUTPUTS,
        INPUTS=inputs_of(x.dtype),
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _expert_product(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    x,
    ends,
    weight,
    scale,
    out,
    num_outputs,
    num_inputs,
    EXPERTS: tl.constexpr,  # noqa: N803
    PADDED: tl.constexpr,  # noqa: N803
    HAS_SCALE: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    OUTPUTS: tl.constexpr,  # noqa: N803
    INPUTS: tl.constexpr,  # noqa: N803
):
    """Some outputs of the rows of a tile; sums in float32. Tiles are those of the first expert, then those of
    the second …; what is left over of the grid has none.
    """
    number, tile = tl.arange(0, PADDED), tl.program_id(0)
    end = tl.load(ends + number, mask=number < EXPERTS, other=0)
    begin = tl.load(ends + number - 1, mask=(number > 0) & (number < EXPERTS), other=0)
    num_tiles = (end - begin + ROWS - 1) // ROWS
    last_tile = tl.cumsum(num_tiles, 0)
    is_mine = (tile >= last_tile - num_tiles) & (tile < last_tile)
    expert = tl.sum(tl.where(is_mine, number, 0), 0).to(tl.int64)
    first = tl.sum(tl.where(is_mine, begin + (tile - last_tile + num_tiles) * ROWS, 0), 0)
    row = first + tl.arange(0, ROWS)
    is_row = row < tl.sum(tl.where(is_mine, end, 0), 0)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < num_outputs
    if tl.sum(is_mine.to(tl.int32), 0) > 0:
        sums = tl.zeros((ROWS, OUTPUTS), tl.float32)
        place = (expert * num_outputs + output[None, :]) * num_inputs
        for start in range(0, num_inputs, INPUTS):
            column = start + tl.arange(0, INPUTS)
            is_input = column < num_inputs
            values = tl.load(
                x + row[:, None].to(tl.int64) * num_inputs + column[None, :],
                mask=is_row[:, None] & is_input[None, :],
                other=0.0,
            )
            # [INPUTS, OUTPUTS]
            weights = tl.load(
                weight + place + column[:, None], mask=is_input[:, None] & is_output[None, :], other=0
            )
            if HAS_SCALE:
                weights = weights.to(tl.float32)
            sums += tl.dot(values, weights.to(values.dtype), input_precision="ieee")
        if HAS_SCALE:
            scales = tl.load(scale + expert * num_outputs + output, mask=is_output, other=0.0)
            sums = sums * scales.to(tl.float32)[None, :]
        tl.store(
            out + row[:, None].to(tl.int64) * num_outputs + output[None, :],
            sums.to(out.dtype.element_ty),
            mask=is_row[:, None] & is_output[None, :],
        )
