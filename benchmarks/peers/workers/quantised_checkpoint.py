"""A checkpoint with rounded weights as vLLM reads it: int8 of compressed-tensors, whose activations vLLM
rounds to int8, too (W8A8), or 4 bits of AWQ. Each weight is rounded to the nearest number, without
calibration; embedding and head stay as they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GROUP = 64  # AWQ's usual 128 divide neither SmolLM2's width nor M's
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the outputs in a word, from its lowest bits on
OF_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
CONFIGS: dict[str, dict[str, Any]] = {
    "W8A8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**OF_INT8, "strategy": "channel", "dynamic": False},
                "input_activations": {**OF_INT8, "strategy": "token", "dynamic": True},
            }
        },
    },
    "AWQ": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
}


def write_quantised(checkpoint: Path, directory: Path, weights: str) -> None:
    from safetensors.torch import load_file, save_file

    tensors: dict[str, Any] = {}
    for name, each in load_file(checkpoint / "model.safetensors").items():
        if name.endswith("proj.weight"):
            parts = (int8 if weights == "W8A8" else awq)(each.float())
            tensors |= {name.removesuffix("weight") + part: value for part, value in parts.items()}
        else:
            tensors[name] = each
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((checkpoint / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": CONFIGS[weights]}))
    for path in checkpoint.glob("tokenizer*"):
        (directory / path.name).symlink_to(path.resolve())


def int8(weight: Any) -> dict[str, Any]:
    """Of [out, in]."""
    import torch

    scale = (weight.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
    return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}


def awq(weight: Any) -> dict[str, Any]:
    import torch

    groups = weight.T.reshape(-1, GROUP, weight.shape[0])  # [groups, inputs, out]
    least, most = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
    scale = ((most - least) / 15).clamp(min=1e-6).half()
    zero = (-least / scale.float()).round().clamp(0, 15)
    codes = (groups / scale.float()[:, None] + zero[:, None]).round().clamp(0, 15)
    return {
        "qweight": words(codes.flatten(0, 1).to(torch.int32)),
        "qzeros": words(zero.to(torch.int32)),
        "scales": scale,
    }


def words(codes: Any) -> Any:
    """[rows, out] as [rows, out / 8]."""
    import torch

    eights = codes.reshape(len(codes), -1, len(ORDER))
    packed = torch.zeros(eights.shape[:2], dtype=torch.int32)
    for place, output in enumerate(ORDER):
        packed |= eights[..., output] << (4 * place)
    return packed
