"""Small GGUF files, by the writer of the package gguf: metadata, tokenizers and tensors as a test wants them.

Without torch; whole models are in `gguf_models`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

KEY = "tokenizer.ggml"
ROOT = Path(__file__).resolve().parents[2]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = {  # a model of two layers
    "general.architecture": "llama",
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.block_count": 2,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 8,
}
EMBEDDING = {"token_embd.weight": np.zeros((512, 32), np.float32)}

Tensors = Mapping[str, NDArray[Any]]


def write(path: Path, fields: Mapping[str, Any], tensors: Tensors = EMBEDDING) -> Path:
    """Tensors in float32 or float16, or bytes of blocks with a type of the package: see `blocks`."""
    writer = gguf.GGUFWriter(path, str(fields.get("general.architecture", "llama")))
    for key, value in fields.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, values in tensors.items():
        kind = values.dtype.metadata["ggml"] if values.dtype.metadata else None
        writer.add_tensor(name, np.ascontiguousarray(values), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def blocks(kind: gguf.GGMLQuantizationType, rows: int, columns: int, seed: int = 0) -> NDArray[Any]:
    """Random blocks of a type: [rows, bytes] that the writer knows as [rows, columns]."""
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    values = np.random.default_rng(seed).integers(0, 256, (rows, columns // size * num_bytes), np.uint8)
    return values.view(np.dtype(np.uint8, metadata={"ggml": kind}))


def byte_level(pre: str = "smollm", size: int = 500) -> dict[str, Any]:
    """A vocabulary of `size` learned from the README, then four tokens of its own."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
    trained.train([str(ROOT / "README.md")], trainer)
    model = trained.to_str()
    merges = _merges(model)
    tokens = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    own = {"<|endoftext|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<think>": USER_DEFINED}
    return {
        f"{KEY}.model": "gpt2",
        f"{KEY}.pre": pre,
        f"{KEY}.tokens": [*tokens, *own],
        f"{KEY}.token_type": [*[NORMAL] * len(tokens), *own.values()],
        f"{KEY}.merges": merges,
        f"{KEY}.bos_token_id": len(tokens),
        f"{KEY}.eos_token_id": len(tokens) + 2,
        f"{KEY}.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def sentence_piece(**changed: Any) -> dict[str, Any]:
    """Bytes, letters, and some words with scores."""
    words = ["th", "he", "in", "er", "an", "▁t", "▁a", "▁th", "▁the", "on", "re", "▁in", "▁an", "▁and", "ing"]
    letters = sorted(
        {letter for word in words for letter in word} | set("abcdefghijklmnopqrstuvwxyz\u2581.,")
    )
    pieces: dict[str, tuple[int, float]] = {
        "<unk>": (UNKNOWN, 0.0),
        "<s>": (CONTROL, 0.0),
        "</s>": (CONTROL, 0.0),
    }
    pieces |= {f"<0x{byte:02X}>": (BYTE, 0.0) for byte in range(256)}
    pieces |= {"<turn>": (CONTROL, 0.0), "\n\n": (USER_DEFINED, 0.0)}
    ranked = [word for word in [*words, *letters] if word not in pieces]
    pieces |= {word: (NORMAL, -float(rank)) for rank, word in enumerate(dict.fromkeys(ranked))}
    return {
        f"{KEY}.model": "llama",
        f"{KEY}.pre": "default",
        f"{KEY}.tokens": list(pieces),
        f"{KEY}.token_type": [kind for kind, _ in pieces.values()],
        f"{KEY}.scores": [score for _, score in pieces.values()],
        f"{KEY}.bos_token_id": 1,
        f"{KEY}.eos_token_id": 2,
        f"{KEY}.unknown_token_id": 0,
        **{f"{KEY}.{name}": value for name, value in changed.items()},
    }


def _merges(model: str) -> list[str]:
    return [" ".join(merge) for merge in json.loads(model)["model"]["merges"]]


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)
