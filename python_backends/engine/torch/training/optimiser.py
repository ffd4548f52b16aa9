"""AdamW for an adapter, one layer at a time, so that a layer's update is one short piece of work.

All gradients are clipped together first, by their global norm. Called by the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from python_backends.engine.torch.training.adapter import Adapter
from python_backends.nouns.training import Adam

MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimiser:
    """Changes the weights of `adapter` in place."""

    def __init__(self, adapter: Adapter) -> None:
        self._layers = [torch.optim.AdamW(layer.values()) for layer in adapter.layers]
        self._adapter = adapter

    def begin(self, gradients: Mapping[str, Tensor], max_norm: float) -> float:
        """Takes the gradients of every weight, and clips them; returns their global norm before that."""
        for key, weight in self._adapter.weights.items():
            weight.grad = gradients[key]
        return float(torch.nn.utils.clip_grad_norm_(self._adapter.weights.values(), max_norm))

    def step(self, layer: int, adam: Adam) -> None:
        """Updates the weights of one layer."""
        optimiser = self._layers[layer]
        rates = {"lr": adam.learning_rate, "weight_decay": adam.weight_decay}
        optimiser.param_groups[0] |= {"betas": adam.betas, "eps": adam.eps, **rates}
        optimiser.step()
        optimiser.zero_grad()

    @property
    def moments(self) -> dict[str, Tensor]:
        """By key and name of the moment; of no step yet, none."""
        found = {}
        for key, weight, optimiser in self._weights():
            for name in MOMENTS if weight in optimiser.state else ():
                found[f"{key}.{name}"] = optimiser.state[weight][name]
        return found

    def resume(self, moments: Mapping[str, Tensor], num_steps: int) -> None:
        """Goes on after `num_steps` steps; after none, it starts from nothing."""
        for key, weight, optimiser in self._weights():
            optimiser.state.pop(weight, None)
            if num_steps:
                values = {name: moments[f"{key}.{name}"].to(weight).clone() for name in MOMENTS}
                optimiser.state[weight] = {"step": torch.tensor(float(num_steps)), **values}

    def _weights(self) -> list[tuple[str, Tensor, torch.optim.AdamW]]:
        return [
            (key, weight, optimiser)
            for optimiser, layer in zip(self._layers, self._adapter.layers, strict=True)
            for key, weight in layer.items()
        ]
