"""A checkpoint of Qwen2's or Llama's architecture as llama.cpp reads it. Its own converter refuses tokenizers
that it does not know, like that of common/models.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{letter}_proj": f"attn_{letter}" for letter in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
}


def write_gguf(checkpoint: Path, path: Path) -> None:
    import gguf

    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, config["model_type"])
    write_sizes(writer, config)
    write_vocabulary(writer, json.loads((checkpoint / "tokenizer.json").read_text()), config)
    for name, values in tensors(checkpoint / "model.safetensors"):
        values = as_rotated(name, values, config)
        if values.ndim == 1 or values.dtype == np.float32:  # llama.cpp keeps norms and biases in float32
            writer.add_tensor(gguf_name(name), as_float32(values))
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(gguf_name(name), values.view(np.uint8), raw_dtype=kind)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()


def write_sizes(writer: Any, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])


def write_vocabulary(writer: Any, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    import gguf

    added = tokenizer.get("added_tokens", ())
    special = {each["content"]: each["id"] for each in added if each["special"]}
    vocabulary = {**tokenizer["model"]["vocab"], **special}
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = (gguf.TokenType.CONTROL if piece in special else gguf.TokenType.NORMAL for piece in pieces)
    merges = tokenizer["model"]["merges"] or [[pieces[0][0], pieces[0][1:]]]  # there must be one
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")  # prompts come as ids
    writer.add_token_list(pieces)
    writer.add_token_types(list(kinds))
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_eos_token_id(config.get("eos_token_id") or 0)


def as_rotated(name: str, values: np.ndarray[Any, Any], config: dict[str, Any]) -> np.ndarray[Any, Any]:
    """llama.cpp turns neighbours of a Llama's queries and keys, transformers turns halves."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    part = next((heads[each] for each in heads if f"{each}.weight" in name), "")
    if config["model_type"] != "llama" or not part:
        return values
    halves = values.reshape(config[part], 2, -1, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def tensors(path: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Of a safetensors file, bfloat16 as uint16: numpy has no such type."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for name, about in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            kind = {"BF16": np.uint16, "F32": np.float32}[about["dtype"]]
            yield name, np.frombuffer(data[start + begin : start + end], kind).reshape(about["shape"])


def as_float32(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (values.astype(np.uint32) << 16).view(np.float32) if values.dtype == np.uint16 else values


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` → `blk.3.ffn_up.weight`"""
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    number, _, rest = name.removeprefix("model.layers.").partition(".")
    module, _, kind = rest.rpartition(".")
    return f"blk.{number}.{NAMES[module]}.{kind}"
