"""A small tokenizer of every kind that today's checkpoints have, built as theirs
are: normaliser, words, model, decoder, specials.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from python_backends.text.checkpoint import Checkpoint
from tests.support.text.checkpoints import (
    LINES,
    TEMPLATE,
    byte_level,
    byte_level_tokenizer,
    read,
    sentence_piece,
    sentence_piece_tokenizer,
)

SPECIALS = ["<pad>", "</s>", "<s>", "<unk>"]
TURNS = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
LLAMA_STEPS = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
CONFIG = {"max_position_embeddings": 1024}


def _bpe(tokenizer: Tokenizer, size: int, alphabet: list[str] | None = None) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*SPECIALS, *TURNS],
        initial_alphabet=alphabet or [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def _with_bytes(tokenizer: Tokenizer, decoder: decoders.Decoder) -> Tokenizer:
    """The trained tokenizer with the 256 bytes at the end of its vocabulary."""
    written = json.loads(tokenizer.to_str())
    model, names = written["model"], [f"<0x{byte:02X}>" for byte in range(256)]
    if model["type"] == "BPE":
        model["vocab"] |= {name: len(model["vocab"]) + i for i, name in enumerate(names)}
        model |= {"unk_token": "<unk>", "fuse_unk": True}
    else:
        model["vocab"] += [[name, -30.0] for name in names]
    model["byte_fallback"] = True
    filled = Tokenizer.from_str(json.dumps(written))
    filled.decoder = decoder
    return filled


def llama_3() -> Tokenizer:
    """Byte-level, words cut by a pattern of its own, text composed first
    (Qwen), runs of spaces as added tokens (GPT-NeoX).
    """
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer = _bpe(tokenizer, 420, pre_tokenizers.ByteLevel.alphabet())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=False) for n in (2, 4)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    return tokenizer


def gemma() -> Tokenizer:
    """SentencePiece BPE that neither adds nor drops a space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return _with_bytes(_bpe(tokenizer, 200), decoders.Sequence(LLAMA_STEPS))


def phi_3() -> Tokenizer:
    """Llama 2's, with turn tokens that swallow the space behind them."""
    tokenizer = sentence_piece_tokenizer()
    tokenizer.add_special_tokens(
        [AddedToken(text, rstrip=True, normalized=False) for text in [*TURNS, "<pad>"]]
    )
    return tokenizer


def mistral() -> Tokenizer:
    """Spaces by Metaspace, one added before the very first word only, dropped again by Strip."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return _with_bytes(_bpe(tokenizer, 200), decoders.Sequence([*LLAMA_STEPS, decoders.Strip(" ", 1, 0)]))


def _unigram(normalizer: normalizers.Normalizer | None) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=160, special_tokens=[*SPECIALS, *TURNS], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def t5() -> Tokenizer:
    """Unigram without bytes: compatibility forms folded, runs of spaces joined,
    what is unknown lost; an end behind every prompt.
    """
    tokenizer = _unigram(
        normalizers.Sequence(
            [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
        )
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def unigram_with_bytes() -> Tokenizer:
    return _with_bytes(_unigram(None), decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))


def word_piece() -> Tokenizer:
    """BERT's: "##" before what continues a word; the decoder puts the
    spaces, and none before most punctuation.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=[*SPECIALS, *TURNS], show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level_tokenizer,
    "llama_3": llama_3,
    "llama_2": sentence_piece_tokenizer,
    "phi_3": phi_3,
    "gemma": gemma,
    "mistral": mistral,
    "t5": t5,
    "unigram_with_bytes": unigram_with_bytes,
    "word_piece": word_piece,
}


@cache
def checkpoint(kind: str) -> Checkpoint:
    if kind in ("byte_level", "llama_2"):
        return {"byte_level": byte_level, "llama_2": sentence_piece}[kind]()
    texts: dict[str, Any] = {
        "eos_token": "</s>",
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "chat_template": TEMPLATE,
    }
    return read(TOKENIZERS[kind](), texts, config=CONFIG)
