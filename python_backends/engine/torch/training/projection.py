"""A frozen product with an adapter beside it: y = x·Wᵀ + b + (x·Aᵀ)·Bᵀ, forward and backward.

On a CPU the backward pass needs W in the other direction, packed a second time: products with the first one
would take several times as long. These are as many bytes again as the layers' weights, only while a model is
trained. A weight is packed at its first use, so that a server which begins to train does not stand still for
all layers at once. On a GPU the same weight serves both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor
from torch.nn import functional

from python_backends.engine.kv.padding import padded
from python_backends.engine.torch.projection import Projection


class Transposed:
    """y = x·W for the weight [out, in] of `frozen`."""

    def __init__(self, frozen: Projection) -> None:
        self._frozen = frozen

    @cached_property
    def _back(self) -> Projection:
        return Projection(self._frozen.weight.T)

    def forward(self, x: Tensor) -> Tensor:  # [rows, out] → [rows, in]
        """With rows of padding, so that there are few sizes of products."""
        count = len(x)
        num_padding = padded(count) - count
        rows = functional.pad(x, (0, 0, 0, num_padding)) if num_padding else x
        return self._back.forward(rows)[:count]


@dataclass(slots=True, eq=False)
class Factors:
    """An adapter of one product in the model's dtype, the scale in B, and the sums of its gradients in
    float32 or better.
    """

    a: Tensor  # [rank, in]
    b: Tensor  # [out, rank]
    a_gradient: Tensor  # [rank, in]
    b_gradient: Tensor  # [out, rank]

    def add(self, dy: Tensor, x: Tensor, t: Tensor) -> None:
        """d(loss)/dA += tᵀ·x, d(loss)/dB += dyᵀ·(x·Aᵀ), for t = dy·B [tokens, rank].

        In bfloat16 the products of a tile are rounded to it, as autograd does; only their sums are not.
        """
        _add_product(self.a_gradient, t.T, x)
        _add_product(self.b_gradient, dy.T, x @ self.a.T)


class AdaptedProjection:
    """What a forward pass gives is shown to the function that watches."""

    def __init__(self, frozen: Projection) -> None:
        self._frozen = frozen
        self._back = Transposed(frozen)
        self._factors: Factors | None = None
        self._watch: Callable[[Tensor], None] | None = None

    @property
    def weight(self) -> Tensor:
        """The frozen weight [out, in]; a copy if it lies packed."""
        return self._frozen.weight

    def watch(self, watch: Callable[[Tensor], None]) -> None:
        self._watch = watch

    def adapt(self, factors: Factors | None) -> None:
        self._factors = factors

    def forward(self, x: Tensor) -> Tensor:  # [rows, in] → [rows, out]
        y = self.value(x)
        if self._watch is not None:
            self._watch(y)
        return y

    def value(self, x: Tensor) -> Tensor:
        """The same, and it is not shown."""
        y, factors = self._frozen.forward(x), self._factors
        return y if factors is None else y.addmm_(x @ factors.a.T, factors.b.T)

    def backward(self, dy: Tensor, x: Tensor) -> None:
        """Adds to the gradients of the adapter, if there is one."""
        if self._factors is not None:
            self._factors.add(dy, x, dy @ self._factors.b)

    def back(self, dy: Tensor, x: Tensor) -> Tensor:
        """The same, and d(loss)/dx [tokens, in] = dy·W + (dy·B)·A."""
        dx = self._back.forward(dy)
        if self._factors is not None:
            t = dy @ self._factors.b
            self._factors.add(dy, x, t)
            dx.addmm_(t, self._factors.a)
        return dx


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`total` += left · right, rounded to their type if it is another."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)
