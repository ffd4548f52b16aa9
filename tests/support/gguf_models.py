"""A model of transformers as llama.cpp's converter would write it to a GGUF file: its fields, its names of
tensors, its order of rows.

The reference against which files are read: what it does to a model, the reader must undo.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.support.gguf_files import KEY, byte_level, write

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
}
LLAMA3_ROWS = "rope_freqs.weight"


def convert(model: Any, path: Path, more: Mapping[str, NDArray[Any]] = MappingProxyType({})) -> Path:
    """`more`: tensors besides."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    name = gguf.MODEL_ARCH_NAMES[architecture]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    tensors = {}
    for full, values in model.state_dict().items():
        if full == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for module, part, own in _stored(full, values.numpy()):
            tensors[f"{names.get_name(module)}.{part}"] = _converted(name, full, own, config)
    tokens = byte_level(size=config.vocab_size - 4)
    tokens |= {f"{KEY}.padding_token_id": tokens[f"{KEY}.bos_token_id"]}
    fields = {"general.architecture": name, **tokens, **_prefixed(name, _fields(config))}
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        tensors[LLAMA3_ROWS] = _llama3(rope, config.head_dim)
    for length in ("long", "short") if rope.get("rope_type") == "longrope" else ():
        tensors[f"rope_factors_{length}.weight"] = np.array(rope[f"{length}_factor"], np.float32)
    return write(path, fields, tensors | dict(more))


def _stored(name: str, values: NDArray[Any]) -> list[tuple[str, str, NDArray[Any]]]:
    """Module, part of its name and values; gate and up of experts apart."""
    module, _, part = name.rpartition(".")
    if part == "gate_up_proj":
        halves = zip(("gate_proj", "up_proj"), np.split(values, 2, 1), strict=True)
        return [(f"{module}.{half}", "weight", np.ascontiguousarray(own)) for half, own in halves]
    return [(name, "weight", values)] if part == "down_proj" else [(module, part, values)]


def _prefixed(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in fields.items() if value is not None}


def _fields(config: Any) -> dict[str, Any]:
    if config.model_type == "gpt2":
        return {
            "context_length": config.n_positions,
            "embedding_length": config.n_embd,
            "block_count": config.n_layer,
            "feed_forward_length": config.n_inner,
            "attention.head_count": config.n_head,
            "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        }
    rope = config.rope_parameters
    full = rope.get("full_attention", rope)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": dim,
        "attention.value_length": dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": full["rope_theta"],
        "rope.dimension_count": int(dim * full.get("partial_rotary_factor", 1.0)),
        "attention.sliding_window": getattr(config, "sliding_window", None),
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
        "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        "expert_count": getattr(config, "num_local_experts", None),
        "expert_used_count": getattr(config, "num_experts_per_tok", None),
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
        **_scaling(full),
    }


def _scaling(rope: dict[str, Any]) -> dict[str, Any]:
    if rope["rope_type"] in ("linear", "yarn"):
        return {
            "rope.scaling.type": rope["rope_type"],
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope.get("original_max_position_embeddings"),
        }
    if rope["rope_type"] == "longrope":
        return {
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.attn_factor": rope["attention_factor"],
        }
    return {}


def _converted(architecture: str, name: str, values: NDArray[Any], config: Any) -> NDArray[Any]:
    if architecture == "llama" and ".q_proj." in name:
        return _permuted(values, config.num_attention_heads)
    if architecture == "llama" and ".k_proj." in name:
        return _permuted(values, config.num_key_value_heads)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return values + 1
    if architecture == "gpt2" and ".c_" in name and name.endswith(".weight"):
        return np.ascontiguousarray(values.T)
    return values


def _permuted(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """llama.cpp's own: halves of a head become neighbours."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _llama3(rope: dict[str, Any], dim: int) -> NDArray[Any]:
    """llama.cpp's own formula, by wavelengths."""
    old, low, high = (
        rope["original_max_position_embeddings"],
        rope["low_freq_factor"],
        rope["high_freq_factor"],
    )
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    smooth = (old / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    factors = np.where(waves < old / high, 1.0, np.where(waves > old / low, rope["factor"], between))
    return factors.astype(np.float32)
