"""config.json of a GGUF file, from its metadata and the names and shapes of its tensors.

Every field under the architecture's own name is translated, known not to matter, or refused by its name: what
is not known might change what the model computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from python_backends.checkpoint.families import FAMILIES
from python_backends.checkpoint.gguf.architectures import ARCHITECTURES, MIXTURES, Architecture
from python_backends.checkpoint.gguf.header import Header
from python_backends.checkpoint.gguf.metadata import Metadata
from python_backends.checkpoint.gguf.rotary import Factors, rope_fields
from python_backends.checkpoint.source import CheckpointError

READ = frozenset(  # of every architecture, by `config_of` and `rotary`
    [
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "block_count",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "attention.layer_norm_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.attn_factor",
        "rope.scaling.original_context_length",
    ]
)
READ_OF_EXPERTS = frozenset({"expert_count", "expert_used_count", "expert_feed_forward_length"})
HARMLESS = frozenset({"vocab_size", "rope.scaling.finetuned", "tensor_data_layout"})
FULL_EVERY = {"gemma2": 2, "gemma3": 6}  # layers with the whole context, where the file has no pattern
QUANTISED = "bfloat16"  # what such models were made from


def architecture_of(metadata: Metadata) -> Architecture:
    """Raises CheckpointError."""
    name = metadata.text("general.architecture")
    if name not in ARCHITECTURES:
        raise metadata.refused("general.architecture", f"{', '.join(ARCHITECTURES)} are served")
    is_mixture = name in MIXTURES and metadata.whole(f"{name}.expert_count", 0)
    return MIXTURES[name] if is_mixture else ARCHITECTURES[name]


def config_of(metadata: Metadata, header: Header, factors: Factors) -> dict[str, Any]:
    """`factors`: the values of a tensor by its name. Raises CheckpointError."""
    architecture, name = architecture_of(metadata), metadata.text("general.architecture")
    _refuse_unknown(metadata, name, architecture)
    hidden, heads = metadata.whole(f"{name}.embedding_length"), metadata.whole(f"{name}.attention.head_count")
    if not heads:
        raise metadata.refused(f"{name}.attention.head_count", "must be at least 1")
    head_dim = metadata.whole(f"{name}.attention.key_length", hidden // heads)
    if metadata.whole(f"{name}.attention.value_length", head_dim) != head_dim:
        raise metadata.refused(f"{name}.attention.value_length", f"must be that of the keys, {head_dim}")
    config = {
        "architectures": [architecture.model_class],
        "model_type": architecture.model_type,
        "vocab_size": _rows(metadata, header),
        "hidden_size": hidden,
        "intermediate_size": metadata.whole(f"{name}.feed_forward_length"),
        "num_hidden_layers": metadata.whole(f"{name}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.whole(f"{name}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        architecture.eps: metadata.real(f"{name}.attention.{architecture.eps_field}"),
        "max_position_embeddings": metadata.whole(f"{name}.context_length"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "dtype": "float32" if not any(each.kind for each in header.tensors.values()) else QUANTISED,
    }
    if architecture.has_rotaries:
        config |= rope_fields(metadata, name, config, factors)
    config |= _FIELDS.get(architecture.model_type, _nothing)(metadata, header, config)
    names = FAMILIES[architecture.model_class].field_names
    return {names.get(field, field): value for field, value in config.items()}


def _refuse_unknown(metadata: Metadata, name: str, architecture: Architecture) -> None:
    known = (
        READ
        | HARMLESS
        | architecture.own_fields
        | (READ_OF_EXPERTS if architecture.has_experts else frozenset())
    )
    if metadata.whole("split.count", 1) > 1:
        raise metadata.refused(
            "split.count", "is a part of a model; llama-gguf-split --merge makes one file of the parts"
        )
    for key, value in metadata.fields.items():
        field = key.removeprefix(f"{name}.")
        if key.startswith(f"{name}.") and field not in known and value:  # 0, false: not in use
            raise metadata.refused(key, f"is not known of the architecture {name}")


def _rows(metadata: Metadata, header: Header) -> int:
    if "token_embd.weight" not in header.tensors:
        raise CheckpointError(f"{metadata.path}: tensor token_embd.weight is missing")
    return header.tensors["token_embd.weight"].shape[0]


def _llama(_metadata: Metadata, header: Header, _config: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
    }


def _gemma2(metadata: Metadata, _header: Header, config: dict[str, Any]) -> dict[str, Any]:
    name = metadata.text("general.architecture")
    wide = config["num_hidden_layers"] == ARCHITECTURES[name].wide_model
    per_head = config["hidden_size"] / config["num_attention_heads"]
    return {
        "query_pre_attn_scalar": per_head if wide else config["head_dim"],
        "attn_logit_softcapping": _softcap(metadata, f"{name}.attn_logit_softcapping"),
        "final_logit_softcapping": _softcap(metadata, f"{name}.final_logit_softcapping"),
        "sliding_window": metadata.whole(f"{name}.attention.sliding_window"),
        "layer_types": _layer_types(metadata, name, config["num_hidden_layers"]),
    }


def _mixtral(metadata: Metadata, _header: Header, _config: dict[str, Any]) -> dict[str, Any]:
    name = metadata.text("general.architecture")
    count, chosen = (metadata.whole(f"{name}.{field}") for field in ("expert_count", "expert_used_count"))
    return {"num_local_experts": count, "num_experts_per_tok": chosen}


def _olmoe(metadata: Metadata, header: Header, config: dict[str, Any]) -> dict[str, Any]:
    found = _mixtral(metadata, header, config)
    return {"num_experts": found.pop("num_local_experts"), "norm_topk_prob": False, **found}


def _qwen3_moe(metadata: Metadata, header: Header, config: dict[str, Any]) -> dict[str, Any]:
    width = metadata.whole("qwen3moe.expert_feed_forward_length")
    # as llama.cpp computes it
    return _mixtral(metadata, header, config) | {"moe_intermediate_size": width, "norm_topk_prob": True}


def _softcap(metadata: Metadata, key: str) -> float | None:
    return metadata.real(key, 0.0) or None


def _layer_types(metadata: Metadata, name: str, num_layers: int) -> list[str]:
    key = f"{name}.attention.sliding_window_pattern"
    if isinstance(metadata.fields.get(key), list):
        slides = [bool(each) for each in metadata.many(key, (int, bool), num_layers)]
    else:
        every = metadata.whole(key, FULL_EVERY[name])
        slides = [not every or (layer + 1) % every != 0 for layer in range(num_layers)]
    return ["sliding_attention" if each else "full_attention" for each in slides]


def _phi3(metadata: Metadata, _header: Header, _config: dict[str, Any]) -> dict[str, Any]:
    return {"sliding_window": metadata.whole("phi3.attention.sliding_window", 0) or None}


def _nothing(_metadata: Metadata, _header: Header, _config: dict[str, Any]) -> dict[str, Any]:
    return {}


_FIELDS: dict[str, Callable[[Metadata, Header, dict[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "gemma2": _gemma2,
    "gemma3_text": _gemma2,
    "phi3": _phi3,
    "mixtral": _mixtral,
    "olmoe": _olmoe,
    "qwen3_moe": _qwen3_moe,
}
