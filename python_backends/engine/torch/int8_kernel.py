"""The product with a weight of int8 for few rows, as a kernel in the Triton language: each weight is read
once, as one byte, and converted in registers.

Owns nothing; imported only where it runs (see `kernel_trial`), and called by `Int8Projection`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

OUTPUTS = 32  # in a program: enough programs for a large device


def int8_product(x: Tensor, weight: Tensor, scale: Tensor, most_rows: int) -> Tensor:
    """(x·Wᵀ) · scale for x [rows, in] with at most `most_rows` rows, a power of two; weight [out, in] int8,
    scale [out].
    """
    out = torch.empty((len(x), len(weight)), dtype=x.dtype, device=x.device)
    _int8_product[(triton.cdiv(len(weight), OUTPUTS),)](
        x,
        weight,
        scale,
        out,
        len(x),
        len(weight),
        weight.shape[1],
        x.stride(0),
        ROWS=most_rows,
        OUTPUTS=OUTPUTS,
        INPUTS=inputs_of(x.dtype),
    )
    return out


def inputs_of(dtype: torch.dtype) -> int:
    """Of a weight's row at a time: in float32 as many as a program holds in registers."""
    return 32 if dtype == torch.float32 else 128


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _int8_product(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    x,
    weight,
    scale,
    out,
    num_rows,
    num_outputs,
    num_inputs,
    x_stride,
    ROWS: tl.constexpr,  # noqa: N803
    OUTPUTS: tl.constexpr,  # noqa: N803
    INPUTS: tl.constexpr,  # noqa: N803
):
    """Some outputs of all rows; sums in float32."""
    row, output = tl.arange(0, ROWS), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_row, is_output = row < num_rows, output < num_outputs
    sums = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for first in range(0, num_inputs, INPUTS):
        column = first + tl.arange(0, INPUTS)
        is_input = column < num_inputs
        values = tl.load(
            x + row[:, None] * x_stride + column[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0
        )
        # [INPUTS, OUTPUTS]
        weights = tl.load(
            weight + output[None, :].to(tl.int64) * num_inputs + column[:, None],
            mask=is_input[:, None] & is_output[None, :],
            other=0,
        )
        sums += tl.dot(values, weights.to(tl.float32).to(values.dtype), input_precision="ieee")
    scales = tl.load(scale + output, mask=is_output, other=0.0).to(tl.float32)
    tl.store(
        out + row[:, None] * num_outputs + output[None, :],
        (sums * scales[None, :]).to(out.dtype.element_ty),
        mask=is_row[:, None] & is_output[None, :],
    )
