"""The rotary embedding of a GGUF file as config.json spells it. llama.cpp writes some of it as fields and
some as tensors of factors, one for each pair of dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from python_backends.checkpoint.gguf.metadata import Metadata
from python_backends.checkpoint.source import CheckpointError

Factors = Callable[[str], Sequence[float] | None]  # the values of a tensor; None: there is none

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SLIDING_BASE = 10_000.0  # of the layers with a window, where the file does not say
SAME = 1e-4  # relative: factors are stored in float32


def rope_fields(metadata: Metadata, name: str, config: dict[str, Any], factors: Factors) -> dict[str, Any]:
    """Raises CheckpointError for what can't be spelled."""
    rope: dict[str, Any] = {"rope_theta": metadata.real(f"{name}.rope.freq_base", 10_000.0)}
    turned, head_dim = metadata.whole(f"{name}.rope.dimension_count", config["head_dim"]), config["head_dim"]
    if turned != head_dim:
        if name != "phi3":
            raise metadata.refused(f"{name}.rope.dimension_count", f"must be the size of a head, {head_dim}")
        rope["partial_rotary_factor"] = turned / head_dim
    if (long := factors("rope_factors_long.weight")) is not None:
        return _long(metadata, name, rope, long, factors)
    if metadata.real(f"{name}.rope.scaling.attn_factor", 1.0) != 1.0:
        raise metadata.refused(
            f"{name}.rope.scaling.attn_factor", "must be 1 without rope_factors_long.weight"
        )
    rope |= _scaling(metadata, name)
    if (listed := factors("rope_freqs.weight")) is not None:
        rope |= _llama3(metadata, rope, listed)
    if name != "gemma3":
        return {"rope_parameters": rope}
    sliding = metadata.real("gemma3.rope.freq_base_swa", SLIDING_BASE)
    return {
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": sliding},
        }
    }


def _scaling(metadata: Metadata, name: str) -> dict[str, Any]:
    scaling = f"{name}.rope.scaling"
    kind, factor = metadata.text(f"{scaling}.type", "none"), metadata.real(f"{scaling}.factor", 1.0)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {"rope_type": "default"}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise metadata.refused(f"{scaling}.type", "none, linear and yarn are served")
    original = metadata.whole(f"{scaling}.original_context_length")
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}


def _long(
    metadata: Metadata, name: str, rope: dict[str, Any], long: Sequence[float], factors: Factors
) -> dict[str, Any]:
    if (short := factors("rope_factors_short.weight")) is None:
        raise CheckpointError(f"{metadata.path}: tensor rope_factors_short.weight is missing")
    original = metadata.whole(f"{name}.rope.scaling.original_context_length")
    longrope = {
        "rope_type": "longrope",
        "short_factor": list(short),
        "long_factor": list(long),
        "attention_factor": metadata.real(f"{name}.rope.scaling.attn_factor", 1.0),
        "original_max_position_embeddings": original,
    }
    return {"original_max_position_embeddings": original, "rope_parameters": rope | longrope}


def _llama3(metadata: Metadata, rope: dict[str, Any], listed: Sequence[float]) -> dict[str, Any]:
    """The file has the factors that the converter computed from Llama 3.1's few numbers. All models of that
    kind differ in one of them: the largest factor.
    """
    fields = {"rope_type": "llama3", "factor": round(max(listed), 3), **LLAMA3}
    wanted = _llama3_factors(rope["rope_theta"], len(listed), fields)
    if rope["rope_type"] != "default" or not all(
        math.isclose(one, other, rel_tol=SAME) for one, other in zip(listed, wanted, strict=True)
    ):
        raise CheckpointError(f"{metadata.path}: tensor rope_freqs.weight: its factors are not Llama 3.1's")
    return fields


def _llama3_factors(theta: float, pairs: int, fields: dict[str, Any]) -> list[float]:
    """By how much Llama 3.1 divides the frequency of each pair."""
    low, high = fields["low_freq_factor"], fields["high_freq_factor"]
    found = []
    for pair in range(pairs):
        turns = fields["original_max_position_embeddings"] / (2 * math.pi * theta ** (pair / pairs))
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        found.append(1 / ((1 - smooth) / fields["factor"] + smooth))
    return found
