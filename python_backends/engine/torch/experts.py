"""A mixture of experts: each row of a step goes through the few experts that the router chooses.

The rows are put in the order of their experts, so that an expert is one product over all rows that chose it,
be they one or many, and weights that no row chose are not read. With a kernel of ours (`expert_kernel`)
nothing of that goes to the host; without one, the host is told where the rows of an expert end, once a layer.
Owns the weights; built by the decoder's blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from python_backends.engine.kv.padding import padded
from python_backends.engine.model.description import Experts, Linear
from python_backends.engine.torch.operators import Operator
from python_backends.engine.torch.projection import projection_of


class ExpertProducts:
    """y = x·Wᵀ with the W of the expert of each row."""

    def __init__(self, linear: Linear) -> None:
        """Weight [experts, out, in], and scales [experts, out] where it is int8."""
        scales = [None] * len(linear.weight) if linear.scale is None else linear.scale
        self._num_outputs = linear.weight.shape[1]
        self._experts = [
            projection_of(Linear(weight, None, scale), kernels=False)
            for weight, scale in zip(linear.weight, scales, strict=True)
        ]

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """x [rows, in] in the order of the experts, whose rows end at `ends` [experts] → [rows, out].

        Its rows and some that follow are multiplied: of sizes for which the libraries have written code.
        """
        y = x.new_empty((len(x), self._num_outputs))
        first = 0
        for expert, end in zip(self._experts, ends.tolist(), strict=True):
            if first < end:
                size = min(padded(end - first), len(x))
                begin = min(first, len(x) - size)
                y[first:end] = expert.forward(x[begin : begin + size])[first - begin : end - begin]
            first = end
        return y


def expert_products(linear: Linear, kernels: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Of rows and ends: see `ExpertProducts.forward`."""
    if not kernels:
        return ExpertProducts(linear).forward
    from python_backends.engine.torch.expert_kernel import expert_product  # brings Triton's language

    return partial(expert_product, weight=linear.weight, scale=linear.scale)


class ChosenExperts:
    def __init__(self, experts: Experts, gate: Operator, kernels: bool) -> None:
        """`gate`: between the products of an expert."""
        self._router = projection_of(experts.router, kernels)
        self._up, self._down = (expert_products(each, kernels) for each in (experts.up, experts.down))
        self._gate = gate
        self._chosen, self._normalised = experts.chosen, experts.normalised
        self._numbers = torch.arange(len(experts.router.weight), device=experts.router.weight.device)

    def forward(self, x: Tensor) -> Tensor:  # [rows, hidden] → [rows, hidden]
        probabilities, experts = self._choose(x)
        order = experts.flatten().argsort(stable=True)
        ends = torch.searchsorted(experts.flatten()[order], self._numbers, right=True)
        fed = self._gate(self._up(x[order // self._chosen], ends))
        by_row = x.new_empty((len(order), x.shape[1]))
        by_row[order] = self._down(fed, ends)
        return torch.bmm(probabilities[:, None], by_row.view(len(x), self._chosen, -1))[:, 0]

    def _choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities in the type of x and numbers of the experts of each row, each [rows, chosen]."""
        scores = self._router.forward(x)
        at_least_float32 = torch.promote_types(scores.dtype, torch.float32)
        probabilities, experts = scores.softmax(-1, dtype=at_least_float32).topk(self._chosen)
        if self._normalised:
            probabilities /= probabilities.sum(-1, keepdim=True)
        return probabilities.to(x.dtype), experts
