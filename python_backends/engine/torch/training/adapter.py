"""A LoRA adapter in training: its weights in float32 as PEFT names and shapes them, and as the fused products
of the engine need them (`adapters/factors.py`). Called by `model` and the optimiser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from python_backends.engine.torch.adapters.factors import joined
from python_backends.engine.torch.adapters.modules import Module, Modules, key_of, names_of
from python_backends.engine.torch.training.projection import Factors
from python_backends.nouns.training import AdapterShape


def targets_of(modules: Modules, shape: AdapterShape) -> frozenset[str]:
    """The products that have an adapter. ValueError if a module is none of the model's."""
    unknown = set(shape.modules) - set(names_of(modules))
    if unknown or not shape.modules:
        known = ", ".join(names_of(modules))
        raise ValueError(f"targets = {', '.join(sorted(unknown))}: must be at least one of {known}")
    return frozenset(
        name for name, parts in modules.items() if any(module.name in shape.modules for module in parts)
    )


class Adapter:
    """The weights by PEFT's keys. `prefix` is what the keys of the layers begin with."""

    def __init__(
        self, modules: Modules, prefix: str, num_layers: int, shape: AdapterShape, dtype: torch.dtype
    ) -> None:
        """All zero, of `dtype`."""
        targets_of(modules, shape)
        self.shape = shape
        self._prefix, self._all_modules = prefix, modules
        self._modules = {
            name: tuple(part for part in parts if part.name in shape.modules)
            for name, parts in modules.items()
        }
        self.layers: list[dict[str, Tensor]] = [self._zeros(layer, dtype) for layer in range(num_layers)]

    def _zeros(self, layer: int, dtype: torch.dtype) -> dict[str, Tensor]:
        found = {}
        for part in (part for parts in self._modules.values() for part in parts):
            device = part.rows.device
            found[self._key(layer, part, "A")] = torch.zeros(
                (self.shape.rank, part.num_inputs), dtype=dtype, device=device
            )
            found[self._key(layer, part, "B")] = torch.zeros(
                (len(part.rows), self.shape.rank), dtype=dtype, device=device
            )
        return found

    def _key(self, layer: int, part: Module, side: str) -> str:
        return key_of(self._prefix, layer, part, side)

    @property
    def weights(self) -> dict[str, Tensor]:
        return {key: weight for layer in self.layers for key, weight in layer.items()}

    def draw(self, seed: int) -> None:
        """A as PEFT starts it, uniform within ±1/√in; B = 0, so that the model is not changed yet."""
        generator = torch.Generator().manual_seed(seed)
        for key, weight in self.weights.items():
            if ".lora_A." in key:
                bound = 1 / math.sqrt(weight.shape[1])
                weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Takes over weights by key. ValueError where a key or a shape is another."""
        mine = self.weights
        if weights.keys() != mine.keys():
            raise ValueError(f"the adapter has other tensors: {sorted(weights.keys() ^ mine.keys())[:3]} …")
        for key, weight in weights.items():
            if weight.shape != mine[key].shape:
                raise ValueError(f"{key}: {list(weight.shape)}, must be {list(mine[key].shape)}")
            mine[key].copy_(weight)

    def factors(self, layer: int, name: str, dtype: torch.dtype) -> Factors | None:
        """For a product in `dtype`, with gradients of 0; None: it has no adapter."""
        parts = self._modules[name]
        if not parts:
            return None
        own = self.layers[layer]
        adapted = [
            (part, own[self._key(layer, part, "A")], self.shape.scale * own[self._key(layer, part, "B")])
            for part in parts
        ]
        a, b = joined(self._all_modules[name], adapted)
        return Factors(a.to(dtype), b.to(dtype), torch.zeros_like(a), torch.zeros_like(b))

    def gradients(self, layer: int, name: str, factors: Factors) -> dict[str, Tensor]:
        """By key, of the weights of one product."""
        found = {}
        rank = self.shape.rank
        for index, part in enumerate(self._modules[name]):
            columns = slice(index * rank, (index + 1) * rank)
            found[self._key(layer, part, "A")] = factors.a_gradient[columns]
            found[self._key(layer, part, "B")] = self.shape.scale * factors.b_gradient[part.rows, columns]
        return found
