"""Reads a checkpoint's weights file by file straight to a device: the host holds no second copy of them.

transformers does the same only where another package, accelerate, is installed. Owns nothing. Called by
`checkpoint`, which lets transformers load what is not found here under the names of its modules.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"


@torch.no_grad()
def load_straight(directory: Path, config: Any, dtype: torch.dtype, device: torch.device) -> Any | None:
    """transformers' causal language model of `config` with the weights of `directory`, on `device`.

    None if the files do not hold every weight once, under the model's own name and with its shape, and
    nothing else: then transformers has to convert or to refuse them.
    """
    files = weight_files(directory)
    if not files:
        return None
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    targets = dict(model.named_parameters(remove_duplicate=False)) | dict(_kept_buffers(model))
    filled: set[int] = set()
    for path in files:
        with safe_open(path, framework="pt", device=str(device)) as file:
            for name in file.keys():  # noqa: SIM118
                target = targets.get(name)
                if target is None or id(target) in filled:
                    return None
                if tuple(file.get_slice(name).get_shape()) != tuple(target.shape):
                    return None
                target.copy_(file.get_tensor(name))
                filled.add(id(target))
    return model if all(id(target) in filled for target in targets.values()) else None


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights, each once; none if the checkpoint is of another format. As
    transformers does, a whole file goes before an index.
    """
    index = directory / INDEX
    if (directory / WHOLE).is_file() or not index.is_file():
        return [directory / WHOLE] if (directory / WHOLE).is_file() else []
    return sorted({directory / name for name in json.loads(index.read_text())["weight_map"].values()})


def _kept_buffers(model: torch.nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers that checkpoints hold."""
    names = model.state_dict().keys()
    return [(name, buffer) for name, buffer in model.named_buffers(remove_duplicate=False) if name in names]
