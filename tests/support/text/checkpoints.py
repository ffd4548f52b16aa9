"""Small checkpoints of both tokenizer families, made with the `tokenizers`
library: enough words to merge, all 256 bytes, specials.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from python_backends.text.checkpoint import Checkpoint, read_checkpoint

LINES = [
    "The quick brown fox jumps over the lazy dog. Stop here, please stop.",
    "user assistant system end <|x|> [INST] hello world hello there",
    "नमस्ते दुनिया यह एक परीक्षण है",
    "你好，世界。这是一个测试。",
    "שלום עולם مرحبا بالعالم",
    "👋🏽 👨‍👩‍👧‍👦 é e\u0301 ñ n\u0303 🇩🇪",
] * 3

TEMPLATE = (
    "{%- for message in messages -%}{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}{%-"
    " endfor -%}{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0)"
    " %}{{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST]"
    " ' + message['content'].strip() + ' [/INST]' }}{% else %}{{ ' ' + message['content'] | trim + eos_token"
    " }}{% endif %}{% endfor %}"
)
SPECIALS = ["<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"]


def byte_level_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


def sentence_piece_tokenizer() -> Tokenizer:
    """As Llama 2 has it: ▁ for spaces, one put before the text, bytes for what
    the vocabulary lacks, BOS before the prompt.
    """
    words = ["▁hello", "▁world", "▁the", "▁stop", "stop", "INST", "end"]
    letters = sorted({letter for line in LINES[:2] for letter in line.replace(" ", "▁")} | {"é", "你"})
    merges = [pair for word in words for pair in _merges(word)]
    vocabulary = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *letters,
        "▁▁",
        *map("".join, merges),
    ]
    ids = {token: i for i, token in enumerate(dict.fromkeys(vocabulary))}
    merges = list(dict.fromkeys([("▁", "▁"), *merges]))
    tokenizer = Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def _merges(word: str) -> list[tuple[str, str]]:
    return [(word[:i], word[i]) for i in range(1, len(word))]


def write_checkpoint(
    directory: Path, tokenizer: Tokenizer, texts: dict[str, Any], **files: dict[str, Any]
) -> Path:
    """`files` are JSON files by their stems."""
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, content in {"tokenizer_config": texts, **files}.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def read(tokenizer: Tokenizer, texts: dict[str, Any], **files: dict[str, Any]) -> Checkpoint:
    with TemporaryDirectory() as directory:
        return read_checkpoint(write_checkpoint(Path(directory), tokenizer, texts, **files))


@cache
def byte_level() -> Checkpoint:
    texts = {"eos_token": "<|end|>", "pad_token": {"content": "<|pad|>"}, "chat_template": TEMPLATE}
    return read(
        byte_level_tokenizer(),
        texts,
        config={"max_position_embeddings": 128, "vocab_size": 448, "eos_token_id": 0},
    )


@cache
def sentence_piece() -> Checkpoint:
    texts = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": LLAMA_TEMPLATE}
    return read(sentence_piece_tokenizer(), texts, config={"max_position_embeddings": 128})
