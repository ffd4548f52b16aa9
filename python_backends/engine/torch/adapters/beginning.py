"""An adapter of PEFT from which training begins: read, and checked with the model, of which only the
configuration is read. Called by `submit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from python_backends.engine.model.loading import CPU, facts_of
from python_backends.engine.protocol import BadAdapterError
from python_backends.engine.torch.adapters import peft_files
from python_backends.engine.torch.adapters.factors import adapted_model
from python_backends.engine.torch.adapters.modules import key_of, names_of
from python_backends.nouns.training import AdapterShape
from python_backends.settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class Beginning:
    shape: AdapterShape
    weights: dict[str, NDArray[Any]]  # by PEFT's keys, in float32, not scaled


def read_beginning(settings: Settings, directory: Path) -> Beginning:
    """Raises BadAdapterError. Links may lead anywhere: the one who submits a job has named the directory."""
    trained = adapted_model(facts_of(settings), torch.float32, CPU)
    adapter = peft_files.read(directory, Path("/"), trained.most_bytes)
    model = trained.as_named_in(adapter)
    model.factors(adapter)
    paths = sorted({key.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] for key in adapter.tensors})
    shapes = sorted({(adapter.rank(path), adapter.scale(path)) for path in paths})
    if len(shapes) > 1:
        found = ", ".join(f"rank {rank} with alpha / rank {scale:g}" for rank, scale in shapes[:4])
        raise BadAdapterError(f"its modules differ ({found}): training has one rank and one alpha")
    parts = [part for parts in model.modules.values() for part in parts]
    own = {path.rsplit(".", 1)[-1] for path in paths}
    names = tuple(name for name in names_of(model.modules) if name in own)
    for layer in range(model.num_layers):
        for key in (key_of(model.prefix, layer, part, "A") for part in parts if part.name in names):
            if key not in adapter.tensors:
                raise BadAdapterError(f"it has no {key}: training adapts a module in all layers")
    rank, scale = shapes[0]
    weights = {
        trained.prefix + key.removeprefix(model.prefix): np.array(each.float())
        for key, each in adapter.tensors.items()
    }
    return Beginning(AdapterShape(rank, float(f"{scale * rank:.9g}"), names), weights)
