"""Quantised checkpoints and what they mean, written down a second time: words are filled by whole numbers of
Python, a value at a time, and weights are products of a value less its zero with its scale, in the scale's
type.

Compared once, on 2026-11-26, with compressed-tensors 0.20.0 (all formats here, with scales of three types),
AutoAWQ 0.2.9 (`dequantize_gemm`), GPTQModel 7.7.0 (`dequantize_weight`) and transformers 5.23.0
(`Fp8Dequantize`): equal to the last bit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP = 32
LINEAR = "proj.weight"  # what is quantised: the ends of the names of tensors
Ints = NDArray[np.int64]
Parts = dict[str, Tensor]


@dataclass(frozen=True)
class Scheme:
    config: dict[str, Any]
    # parts by the last part of their names, and the weight, of [out, in]
    make: Callable[[np.random.Generator, int, int], tuple[Parts, Tensor]]


def words(values: Ints, bits: int, order: Sequence[int] = ()) -> Tensor:
    """[rows, columns] as int32: a word has 32 / bits columns, the first in the lowest bits, or in `order`."""
    count = 32 // bits
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % count)))
    rows = []
    for row in padded.tolist():
        packed = []
        for first in range(0, len(row), count):
            word = sum(row[first + (order or range(count))[at]] << (bits * at) for at in range(count))
            packed.append(word - (1 << 32) if word >= 1 << 31 else word)
        rows.append(packed)
    return torch.tensor(rows, dtype=torch.int32)


def meant(values: Ints, zeros: Ints, scale: Tensor) -> Tensor:
    """The weight: all three are [out, in]."""
    return torch.tensor(values - zeros).to(scale.dtype) * scale


def drawn_scale(draw: np.random.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.tensor(draw.uniform(0.001, 0.01, shape)).to(dtype)


def by_group(each: Any, columns: int, groups: Any = None) -> Any:
    """[out, groups] as [out, columns]."""
    return each[:, np.arange(columns) // (columns // each.shape[1]) if groups is None else groups]


def float8(rows: int, columns: int, *, strategy: str, name: str = "weight_scale", wide: bool = False) -> Any:
    """`wide`: multiplied in float32."""

    def make(draw: np.random.Generator, outs: int, ins: int) -> tuple[Parts, Tensor]:
        values = torch.tensor(draw.normal(size=(outs, ins))).to(torch.float8_e4m3fn)
        height, width = rows or outs, columns or ins
        dtype = torch.float32 if wide else torch.bfloat16
        scale = drawn_scale(draw, -(-outs // height), -(-ins // width), dtype=dtype)
        spread = torch.stack([scale[row // height, [c // width for c in range(ins)]] for row in range(outs)])
        stored = scale.reshape(()) if strategy == "tensor" else scale
        return {"weight": values, name: stored}, values.to(dtype) * spread

    return make


def int8(draw: np.random.Generator, outs: int, ins: int) -> tuple[Parts, Tensor]:
    values, scale = draw.integers(-128, 128, (outs, ins)), drawn_scale(draw, outs, 1)
    parts = {"weight": torch.tensor(values, dtype=torch.int8), "weight_scale": scale}
    return parts, meant(values, np.zeros_like(values), scale.expand(outs, ins))


def packed(bits: int, group: int, has_zeros: bool) -> Any:
    def make(draw: np.random.Generator, outs: int, ins: int) -> tuple[Parts, Tensor]:
        count, middle = ins // group if group else 1, 1 << (bits - 1)
        values = draw.integers(0, 1 << bits, (outs, ins))
        zeros = draw.integers(0, 1 << bits, (outs, count)) if has_zeros else np.full((outs, count), middle)
        scale = drawn_scale(draw, outs, count, dtype=torch.float16)
        parts = {"weight_packed": words(values, bits), "weight_scale": scale}
        parts["weight_shape"] = torch.tensor([outs, ins])
        if has_zeros:
            parts["weight_zero_point"] = words(zeros.T, bits).T.contiguous()
        return parts, meant(values, by_group(zeros, ins), by_group(scale, ins))

    return make


def awq(draw: np.random.Generator, outs: int, ins: int) -> tuple[Parts, Tensor]:
    values, zeros = draw.integers(0, 16, (outs, ins)), draw.integers(0, 16, (outs, ins // GROUP))
    scale, order = drawn_scale(draw, outs, ins // GROUP, dtype=torch.float16), (0, 2, 4, 6, 1, 3, 5, 7)
    parts = {
        "qweight": words(values.T, 4, order),
        "qzeros": words(zeros.T, 4, order),
        "scales": scale.T.contiguous(),
    }
    return parts, meant(values, by_group(zeros, ins), by_group(scale, ins))


def gptq(bits: int, *, version: int, by_activation: bool, has_index: bool = True) -> Any:
    def make(draw: np.random.Generator, outs: int, ins: int) -> tuple[Parts, Tensor]:
        count = ins // GROUP
        values, zeros = draw.integers(0, 1 << bits, (outs, ins)), draw.integers(1, 1 << bits, (outs, count))
        scale, groups = drawn_scale(draw, outs, count, dtype=torch.float16), np.arange(ins) // GROUP
        groups = draw.permutation(groups) if by_activation else groups
        parts = {
            "qweight": words(values, bits).T.contiguous(),
            "qzeros": words((zeros - (version == 1)).T, bits),
            "scales": scale.T.contiguous(),
        }
        if has_index:
            parts["g_idx"] = torch.tensor(groups, dtype=torch.int32)
        return parts, meant(values, by_group(zeros, ins, groups), by_group(scale, ins, groups))

    return make


def compressed(kept: str, **weights: Any) -> dict[str, Any]:
    """As llm-compressor writes it."""
    of_all = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": None,
        "symmetric": True,
    }
    group = {"targets": ["Linear"], "weights": {**of_all, **weights}, "input_activations": {"num_bits": 8}}
    return {
        "quant_method": "compressed-tensors",
        "format": kept,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "sparsity_config": {},
    }


def gptq_config(bits: int, **options: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": False, **options}


FLOAT8 = {"type": "float", "num_bits": 8}
BLOCKED = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [24, 40],
    "fmt": "e4m3",
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
SCHEMES = {
    "float8 of a tensor": Scheme(
        compressed("float-quantized", **FLOAT8, strategy="tensor"), float8(0, 0, strategy="tensor")
    ),
    "float8 of channels": Scheme(
        compressed("float-quantized", **FLOAT8, strategy="channel"), float8(1, 0, strategy="channel")
    ),
    "float8 of blocks": Scheme(
        compressed("float-quantized", **FLOAT8, strategy="block", block_structure=[24, 40]),
        float8(24, 40, strategy="block"),
    ),
    "int8 of channels": Scheme(compressed("int-quantized", type="int", num_bits=8, strategy="channel"), int8),
    "int8 in words": Scheme(
        compressed("pack-quantized", type="int", num_bits=8, strategy="channel"), packed(8, 0, False)
    ),
    "int4 in words": Scheme(
        compressed("pack-quantized", type="int", num_bits=4, strategy="group", group_size=GROUP),
        packed(4, GROUP, False),
    ),
    "int4 in words with zeros": Scheme(
        compressed(
            "pack-quantized", type="int", num_bits=4, strategy="group", group_size=GROUP, symmetric=False
        ),
        packed(4, GROUP, True),
    ),
    "blocks as DeepSeek has them": Scheme(
        BLOCKED, float8(24, 40, strategy="block", name="weight_scale_inv", wide=True)
    ),
    "float8 of a tensor, as AutoFP8 has it": Scheme(
        {"quant_method": "fp8", "activation_scheme": "static"}, float8(0, 0, strategy="tensor", wide=True)
    ),
    "AWQ": Scheme(AWQ, awq),
    "GPTQ of 4 bits": Scheme(gptq_config(4), gptq(4, version=1, by_activation=False)),
    "GPTQ of 4 bits by activation": Scheme(
        gptq_config(4, desc_act=True), gptq(4, version=1, by_activation=True)
    ),
    "GPTQ of 8 bits": Scheme(gptq_config(8), gptq(8, version=1, by_activation=True)),
    "GPTQ of version 2": Scheme(
        gptq_config(4, checkpoint_format="gptq_v2"), gptq(4, version=2, by_activation=False)
    ),
    "GPTQ without an index": Scheme(gptq_config(8), gptq(8, version=1, by_activation=False, has_index=False)),
}


def write(scheme: Scheme, model: Path, quantised: Path, plain: Path) -> None:
    """Two copies of the directory `model` with other weights: quantised ones, and what they mean."""
    draw = np.random.default_rng(5)
    kept, floats = {}, {}
    for name, tensor in load_file(model / "model.safetensors").items():
        floats[name] = kept[name] = tensor
        if name.endswith(LINEAR):
            parts, floats[name] = scheme.make(draw, *tensor.shape)
            del kept[name]
            kept |= {f"{name.removesuffix('weight')}{part}": each for part, each in parts.items()}
            kept[f"{name.removesuffix('weight')}input_scale"] = torch.ones(1)
    if "bits" in scheme.config:  # no activations are quantised there
        kept = {name: tensor for name, tensor in kept.items() if not name.endswith("input_scale")}
    for directory, tensors in ((quantised, kept), (plain, floats)):
        shutil.copytree(model, directory)
        save_file(tensors, directory / "model.safetensors")
    change(quantised, quantization_config=scheme.config)


def change(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
