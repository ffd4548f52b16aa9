"""transformers' model with the weights that an engine has where model.weights rounds them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from python_backends.engine.model.description import Linear
from python_backends.engine.model.quantised import quantise
from tests.support.model_source import facts_from


def int8(weight: Tensor) -> Tensor:
    """What the weight is after rounding."""
    rounded = quantise(Linear(weight, None))
    assert rounded.scale is not None
    return rounded.weight * rounded.scale[..., None]


def with_rounded_layers(model: Any, rounded: Callable[[Tensor], Tensor] = int8) -> Any:
    """A copy, each weight of a layer's products as what it is after rounding."""
    changed, family = copy.deepcopy(model), facts_from(model).family
    for name, weight in getattr(changed.base_model, family.layers).named_parameters():
        if weight.ndim > 1 and not name.endswith("mlp.gate.weight"):  # neither a vector nor a router
            plain = weight.detach()
            weight.data = rounded(plain.T.contiguous()).T if family.inputs_first else rounded(plain)
    return changed


def with_rounded_head(model: Any) -> Any:
    """A copy with the head of layers in C++; its embedding is rounded, too, where it is the head's weight."""
    changed = copy.deepcopy(model)
    weight = changed.get_output_embeddings().weight
    weight.data.copy_(int8(weight.detach()))
    return changed
