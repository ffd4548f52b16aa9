"""The linear modules of a checkpoint that an adapter may change, by the product of the engine that each is a
part of, and the names of their tensors in PEFT's files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.checkpoint.tensor_names import module_shapes
from python_backends.engine.adapter_directory import MAX_RANK
from python_backends.engine.model.weights import qkv_rows


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A linear module of the checkpoint, a part of one product."""

    name: str  # "q_proj"
    path: str  # "self_attn.q_proj"
    rows: Tensor  # [out] where its rows are in the product
    num_inputs: int


Modules = Mapping[str, tuple[Module, ...]]  # of each product of a layer


def modules_of(facts: ModelFacts) -> Modules:
    """All layers have the same: where some have experts, those of attention."""
    family, shapes = facts.family, module_shapes(facts)
    order = qkv_rows(facts).argsort()
    attention = family.attention
    found = {
        "qkv": _modules(shapes, [f"{attention}.{name}" for name in family.qkv], order),
        "o": _modules(shapes, [f"{attention}.{family.output}"]),
    }
    if not facts.experts:
        found["up"] = _modules(shapes, [f"mlp.{name}" for name in family.up])
        found["down"] = _modules(shapes, [f"mlp.{family.down}"])
    return found


def prefix_of(facts: ModelFacts) -> str:
    """What PEFT's keys of the layers begin with."""
    return f"base_model.model.{facts.family.body}.{facts.family.layers}"


def key_of(prefix: str, layer: int, part: Module, side: str) -> str:
    """PEFT's name of the tensor; `side`: A or B."""
    return f"{prefix}.{layer}.{part.path}.lora_{side}.weight"


def most_bytes(modules: Modules, num_layers: int) -> int:
    """Of the file of an adapter of rank MAX_RANK for all modules, in float64, with a header of its names."""
    widths = sum(part.num_inputs + len(part.rows) for parts in modules.values() for part in parts)
    return num_layers * MAX_RANK * widths * 8 + (1 << 24)


def names_of(modules: Modules) -> tuple[str, ...]:
    """Each once: modules of two products may have the same."""
    return tuple(dict.fromkeys(module.name for parts in modules.values() for module in parts))


def _modules(
    shapes: Mapping[str, tuple[int, int]], paths: Sequence[str], order: Tensor | None = None
) -> tuple[Module, ...]:
    """Of one product; `order`: where the rows of its parts, one after the other, are in it."""
    found, first = [], 0
    for path in paths:
        num_outputs, num_inputs = shapes[path]
        rows = torch.arange(first, first + num_outputs)
        found.append(
            Module(path.rpartition(".")[2], path, rows if order is None else order[rows], num_inputs)
        )
        first += num_outputs
    return tuple(found)
