"""Several adapters in one product: y += ((x·A'ᵀ) · mask)·B'ᵀ, where A' and B' have those of all adapters, one
after the other, and the mask is 1 where a row has the adapter of the column.

Three operators, however many adapters a step has: a GPU takes longer to be told of small operators than to
compute them. The copies of the weights are as large as the weights. Called by `slot_adapters`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from python_backends.engine.device import to_device
from python_backends.engine.torch.adapters.factors import LayerFactors

Ranks = tuple[int, ...]  # of a product, by adapter; 0: that one does not change it


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """Of one product."""

    a: Tensor  # [in, ranks]
    b: Tensor  # [ranks, out]
    ranks: Ranks


class JoinedAdapters:
    """`weights` of each adapter, by layer."""

    def __init__(self, weights: Sequence[Sequence[LayerFactors]]) -> None:
        self._layers: list[Mapping[str, _Joined]] = [
            _joined_layer(layers) for layers in zip(*weights, strict=True)
        ]
        self.layouts = {joined.ranks for layer in self._layers for joined in layer.values()}

    def of(self, layer: int, name: str) -> _Joined | None:
        return self._layers[layer].get(name)


class JoinedRows:
    """The first rows of a step, each with the adapter of number `numbers` [rows], or none (−1)."""

    def __init__(self, joined: JoinedAdapters, numbers: Tensor, dtype: torch.dtype) -> None:
        self._joined, self._count = joined, len(numbers)
        self._masks = {ranks: _mask(ranks, numbers, dtype) for ranks in joined.layouts}

    def add(self, y: Tensor, x: Tensor, layer: int, name: str) -> None:
        """Changes `y` [rows, out], the product `name` of `x` [rows, in]; later rows are padding."""
        joined = self._joined.of(layer, name)
        if joined is None:
            return
        if len(x) > self._count:
            x, y = x[: self._count], y[: self._count]
        y.addmm_((x @ joined.a).mul_(self._masks[joined.ranks]), joined.b)


def _joined_layer(layers: Sequence[LayerFactors]) -> Mapping[str, _Joined]:
    names = dict.fromkeys(name for layer in layers for name in layer)
    return {name: _joined(name, layers) for name in names}


def _joined(name: str, layers: Sequence[LayerFactors]) -> _Joined:
    parts = [layer.get(name) for layer in layers]
    found = [part for part in parts if part is not None]
    ranks = tuple(0 if part is None else len(part.a) for part in parts)
    return _Joined(torch.cat([part.a for part in found]).T, torch.cat([part.b for part in found], 1).T, ranks)


def _mask(ranks: Ranks, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows, ranks] 0 or 1"""
    owners = to_device(np.repeat(np.arange(len(ranks)), ranks), numbers.device)
    return (numbers[:, None] == owners).to(dtype)
