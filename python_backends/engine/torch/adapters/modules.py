"""The linear modules of a checkpoint that an adapter may change, by the product of the engine that each is a
part of, and the names of their tensors in PEFT's files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from python_backends.engine.model import families
from python_backends.engine.model.weights import dimension_order, qkv_rows


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A linear module of the checkpoint, a part of one product."""

    name: str  # "q_proj"
    path: str  # "self_attn.q_proj"
    rows: Tensor  # [out] where its rows are in the product
    num_inputs: int


Modules = Mapping[str, tuple[Module, ...]]  # of each product of a layer


def modules_of(model: Any) -> Modules:
    """Of transformers' causal language model, whose layers are alike."""
    config, layer = model.config, model.base_model.layers[0]
    family = families.family_of(config)
    attention = getattr(layer, family.attention)
    order = qkv_rows(config, dimension_order(model)).argsort()
    places = {
        "qkv": (family.attention, attention, family.qkv, order),
        "o": (family.attention, attention, (family.output,), None),
        "up": ("mlp", layer.mlp, family.up, None),
        "down": ("mlp", layer.mlp, (family.down,), None),
    }
    return {name: _modules(*place) for name, place in places.items()}


def prefix_of(model: Any) -> str:
    """What PEFT's keys of the layers of transformers' causal language model begin with."""
    return f"base_model.model.{model.base_model_prefix}.layers"


def key_of(prefix: str, layer: int, part: Module, side: str) -> str:
    """PEFT's name of the tensor; `side`: A or B."""
    return f"{prefix}.{layer}.{part.path}.lora_{side}.weight"


def most_bytes(modules: Modules, num_layers: int, max_rank: int) -> int:
    """Of the file of an adapter of that rank for all modules, in float64, with a header of its names."""
    widths = sum(part.num_inputs + len(part.rows) for parts in modules.values() for part in parts)
    return num_layers * max_rank * widths * 8 + (1 << 24)


def names_of(modules: Modules) -> tuple[str, ...]:
    return tuple(module.name for parts in modules.values() for module in parts)


def _modules(path: str, parent: Any, names: tuple[str, ...], order: Tensor | None) -> tuple[Module, ...]:
    found, first = [], 0
    for name in names:
        num_outputs, num_inputs = getattr(parent, name).weight.shape
        rows = torch.arange(first, first + num_outputs)
        found.append(Module(name, f"{path}.{name}", rows if order is None else order[rows], num_inputs))
        first += num_outputs
    return tuple(found)
