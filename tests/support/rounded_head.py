"""transformers' model with the head that layers in C++ have where model.weights rounds weights."""

from __future__ import annotations

import copy
from typing import Any

from python_backends.engine.model.description import Linear
from python_backends.engine.model.quantised import quantise


def with_rounded_head(model: Any) -> Any:
    """A copy; its embedding is rounded, too, where it is the head's weight."""
    changed = copy.deepcopy(model)
    weight = changed.get_output_embeddings().weight
    head = quantise(Linear(weight.detach(), None))
    assert head.scale is not None
    weight.data.copy_(head.weight * head.scale[:, None])
    return changed
