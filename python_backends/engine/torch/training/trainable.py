"""What the training of a model needs besides its decoder: small values of each layer, taken from the
description on its way to the decoder, which keeps no description.

Made when a model is loaded; costs no memory to speak of. Used by `model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.engine.model.description import Layer, Model
from python_backends.engine.torch.adapters.modules import Modules, modules_of, prefix_of
from python_backends.engine.torch.operators import norm_operator
from python_backends.engine.torch.projection import Projection
from python_backends.engine.torch.training.loss import Loss
from python_backends.engine.torch.training.small_operators import SmallOperators


class Trainable:
    """Of the model of `facts`, described by `description`."""

    def __init__(self, facts: ModelFacts, description: Model) -> None:
        device = description.embedding.device
        self.modules: Modules = _on(modules_of(facts), device)
        self.prefix = prefix_of(facts)  # of PEFT's keys
        self.heads, self.dtype, self.device = description.heads, description.embedding.dtype, device
        self.small: list[SmallOperators] = []
        self._norm = norm_operator(description.norm, self.dtype)
        self._scale, self._softcap = description.logit_scale, description.logit_softcap

    def watch(self, layers: Iterable[Layer]) -> Iterator[Layer]:
        """The layers; on their way their small operators are made."""
        for layer in layers:
            self.small.append(SmallOperators(layer, self.heads, self.dtype))
            yield layer

    def loss(self, head: Projection) -> Loss:
        return Loss(self._norm, head, self._scale, self._softcap)


def _on(modules: Modules, device: torch.device) -> Modules:
    return {
        name: tuple(replace(part, rows=part.rows.to(device)) for part in parts)
        for name, parts in modules.items()
    }
