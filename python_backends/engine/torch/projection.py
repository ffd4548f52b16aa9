"""Products with weights, and how a weight is kept for them.

On a CPU a weight lies packed for the matrix product library, which takes less than half as long. The plain
weight is dropped. Called by the decoder, and by training for products in the other direction.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.model.description import Linear

# from about 15 rows on, converting an int8 weight first is faster (bfloat16, two cores)
MOST_DIRECT_ROWS = 12
MOST_KERNEL_ROWS = 64  # of our kernel: one tile, whatever their number, so that one kernel is compiled
# values of an int8 weight that are converted at a time: beyond 32 MiB every allocation would be fresh pages
PIECE_WEIGHTS = 1 << 22


class Projection:
    """y = x·Wᵀ + b for a weight [out, in]. Packs itself on a CPU that can."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self._weight: Tensor = weight
        if can_pack(weight):
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    @property
    def is_packed(self) -> bool:
        return self._weight.is_mkldnn

    @property
    def num_outputs(self) -> int:
        return len(self._weight)

    @property
    def weight(self) -> Tensor:
        """The plain weight [out, in]; a copy if it lies packed."""
        return self._weight.to_dense() if self.is_packed else self._weight

    def forward(self, x: Tensor) -> Tensor:  # [rows, in] → [rows, out]
        if self.is_packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
            return y
        return functional.linear(x, self._weight, self.bias)


class Int8Projection:
    """The same with a weight of int8 [out, in] whose rows have scales [out], in the dtype of x: y = (x·Wᵀ) ·
    scale + b.

    torch's own product takes each row of x by itself and knows bfloat16 on a CPU; where kernels of ours run,
    one takes few rows. For more rows, and elsewhere, the weight is converted piece by piece, each of which
    fits the processor's cache and is freed after use.
    """

    def __init__(
        self, weight: Tensor, scale: Tensor, bias: Tensor | None = None, kernels: bool = False
    ) -> None:
        self.bias = bias
        self._product: Callable[[Tensor, Tensor, Tensor, int], Tensor] | None = None
        if kernels:
            from python_backends.engine.torch.int8_kernel import int8_product  # brings Triton's language

            self._product = int8_product
        self._weight, self._scale = weight.contiguous(), scale
        on_cpu = weight.device.type == "cpu"
        self._most_direct = MOST_DIRECT_ROWS if on_cpu and scale.dtype == torch.bfloat16 else 0
        rows = max(1, PIECE_WEIGHTS // weight.shape[1]) if on_cpu else len(weight)
        self._pieces: tuple[Tensor, ...] = self._weight.split(rows)  # type: ignore[no-untyped-call]

    @property
    def weight(self) -> Tensor:
        """The weight [out, in] that is multiplied with, in the dtype of x: a copy."""
        return self._weight * self._scale[:, None]

    def forward(self, x: Tensor) -> Tensor:  # [rows, in] → [rows, out]
        if self._product is not None and len(x) <= MOST_KERNEL_ROWS:
            y = self._product(x, self._weight, self._scale, MOST_KERNEL_ROWS)
        elif len(x) <= self._most_direct:
            y = torch._weight_int8pack_mm(x.contiguous(), self._weight, self._scale)
        else:
            products = [functional.linear(x, piece.to(x.dtype)) for piece in self._pieces]
            y = (products[0] if len(products) == 1 else torch.cat(products, 1)).mul_(self._scale)
        return y if self.bias is None else y.add_(self.bias)


def projection_of(linear: Linear, kernels: bool) -> Projection | Int8Projection:
    """`kernels`: with ours for int8."""
    if linear.scale is None:
        return Projection(linear.weight, linear.bias)
    return Int8Projection(linear.weight, linear.scale, linear.bias, kernels)


def can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
