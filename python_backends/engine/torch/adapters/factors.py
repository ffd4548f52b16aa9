"""The weights of an adapter as the products of the torch engine need them: y += (x·Aᵀ)·Bᵀ, the scale in B.

A product of several modules (q, k and v; gate and up) has one A, in which theirs stand one after the other,
and a B that is zero where a row is not a module's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.engine.adapter_directory import MAX_RANK
from python_backends.engine.protocol import BadAdapterError
from python_backends.engine.torch.adapters.modules import (
    Module,
    Modules,
    key_of,
    modules_of,
    most_bytes,
    prefix_of,
)
from python_backends.engine.torch.adapters.peft_files import PeftAdapter

# what PEFT's keys begin with: transformers has named the text of a model that takes images in several ways
OF_TEXT = re.compile(r"base_model\.model(\.model|\.language_model)*")


class Factors(NamedTuple):
    """Of one product."""

    a: Tensor  # [rank, in]
    b: Tensor  # [out, rank]


LayerFactors = Mapping[str, Factors]  # by product; one that the adapter does not change is absent


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedModel:
    """What an adapter may change, and how much of it."""

    modules: Modules
    prefix: str  # of PEFT's keys
    num_layers: int
    dtype: torch.dtype
    device: torch.device

    @property
    def most_bytes(self) -> int:
        """Of a file of weights."""
        return most_bytes(self.modules, self.num_layers)

    @torch.no_grad()
    def factors(self, adapter: PeftAdapter) -> list[LayerFactors]:
        """Of each layer. Raises BadAdapterError if a tensor belongs to no module, or has another shape."""
        model = self.as_named_in(adapter)
        missing = set(adapter.tensors) - set(model._keys())
        if missing:
            raise BadAdapterError(f"{min(missing):.200}: this model has no such module")
        return [model._layer(adapter, layer) for layer in range(self.num_layers)]

    def as_named_in(self, adapter: PeftAdapter) -> AdaptedModel:
        """With the prefix that all keys of `adapter` have, if it is one of OF_TEXT."""
        layers = self.prefix.rpartition(".")[2]
        found = {key.partition(f".{layers}.")[0] for key in adapter.tensors}
        body = found.pop() if len(found) == 1 else ""
        return replace(self, prefix=f"{body}.{layers}") if OF_TEXT.fullmatch(body) else self

    def _keys(self) -> Iterator[str]:
        for layer in range(self.num_layers):
            for part in (part for parts in self.modules.values() for part in parts):
                for side in "AB":
                    yield key_of(self.prefix, layer, part, side)

    def _layer(self, adapter: PeftAdapter, layer: int) -> LayerFactors:
        made = {name: self._product(adapter, layer, parts) for name, parts in self.modules.items()}
        return {name: factors for name, factors in made.items() if factors is not None}

    def _product(self, adapter: PeftAdapter, layer: int, parts: Sequence[Module]) -> Factors | None:
        pairs = [(part, self._pair(adapter, layer, part)) for part in parts]
        adapted = [(part, *pair) for part, pair in pairs if pair is not None]
        if not adapted:
            return None
        return Factors(*(each.to(self.device, self.dtype) for each in joined(parts, adapted)))

    def _pair(self, adapter: PeftAdapter, layer: int, part: Module) -> tuple[Tensor, Tensor] | None:
        """A [rank, in] and scaled B [out, rank] of a module, in float32; None: it is not adapted."""
        keys = [key_of(self.prefix, layer, part, side) for side in "AB"]
        if not any(key in adapter.tensors for key in keys):
            return None
        path = keys[0].removeprefix("base_model.model.").rsplit(".lora_", 1)[0]
        rank = adapter.rank(path)
        if rank > MAX_RANK:
            raise BadAdapterError(f"rank {rank} of {path:.200}: must be at most {MAX_RANK}")
        a, b = (
            self._tensor(adapter, key, shape)
            for key, shape in zip(keys, ([rank, part.num_inputs], [len(part.rows), rank]), strict=True)
        )
        scale = adapter.scale(path)
        scaled = b * scale
        if not all(bool(each.to(self.dtype).isfinite().all()) for each in (a, scaled)):
            raise BadAdapterError(f"{path:.200}: values scaled by {scale:g}: must be finite in {self.dtype}")
        return a, scaled

    def _tensor(self, adapter: PeftAdapter, key: str, shape: list[int]) -> Tensor:
        tensor = adapter.tensors.get(key)
        if tensor is None or list(tensor.shape) != shape:
            has = "it is missing" if tensor is None else f"its shape is {list(tensor.shape)}"
            raise BadAdapterError(f"{key}: {has}, must be {shape}")
        return tensor.float()


def joined(parts: Sequence[Module], adapted: Sequence[tuple[Module, Tensor, Tensor]]) -> Factors:
    """Of the product of `parts`, for A [rank, in] and scaled B [out, rank] of each module that is adapted."""
    a = torch.cat([a for _, a, _ in adapted])
    b = a.new_zeros((sum(len(part.rows) for part in parts), len(a)))
    first = 0
    for part, _, own in adapted:
        b[part.rows.to(b.device), first : first + own.shape[1]] = own
        first += own.shape[1]
    return Factors(a, b)


def adapted_model(facts: ModelFacts, dtype: torch.dtype, device: torch.device) -> AdaptedModel:
    return AdaptedModel(modules_of(facts), prefix_of(facts), facts.num_layers, dtype, device)
