"""The models that `peers` and `triton_cost.py` measure, made as ordinary checkpoints: Qwen2 architecture,
random weights; or a published model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.common.work import PUBLISHED

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {  # to try scripts
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 160,
    },
    "S": {
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 1536,
    },
    "M": {
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
    },
}
VOCABULARY = 32_000
LETTERS = "abcdefghijklmnopqrstuvwxyz012345"
PIECE_LETTERS = 3  # 32 ** 3 pieces are enough for the vocabulary


def make_model(shape: str, dtype: str, directory: Path, max_model_tokens: int = 4096) -> None:
    """Writes a Qwen2 of this shape with random weights, without a tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **SHAPES[shape],
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
        max_position_embeddings=max_model_tokens,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(directory)


def make_published(dtype: str, directory: Path) -> None:
    """Writes the model that an installation brings, in `dtype`, with its tokenizer. Raises SystemExit where
    it is not installed.
    """
    import torch
    from safetensors.torch import save_file

    from python_backends.checkpoint.brought import smollm2
    from python_backends.checkpoint.opening import open_source

    if (path := smollm2()) is None:
        raise SystemExit(f"{PUBLISHED} is not installed: build/set-up smollm2 brings it")
    source = open_source(path)
    weights = {name: source.read(name).to(getattr(torch, dtype)) for name in source.tensors}
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(source.config | {"dtype": dtype}))
    (directory / "generation_config.json").write_text(json.dumps(source.generation))
    source.tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )


def make_tokenizer(directory: Path, size: int = VOCABULARY, letters: int = PIECE_LETTERS) -> None:
    """Writes a byte-level vocabulary of pieces of `letters` letters: each sequence of ids has one text, and
    all answers with the same number of tokens have texts of the same length.
    """
    vocabulary = {piece_of(token, letters): token for token in range(size)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))
    pieces = pre_tokenizers.Split(Regex("." * letters), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )


def text_of(tokens: Iterable[int], letters: int = PIECE_LETTERS) -> str:
    return "".join(piece_of(token, letters) for token in tokens)


def num_tokens(text: str) -> int:
    return len(text) // PIECE_LETTERS


def piece_of(token: int, letters: int = PIECE_LETTERS) -> str:
    digits = (token // len(LETTERS) ** place % len(LETTERS) for place in reversed(range(letters)))
    return "".join(LETTERS[digit] for digit in digits)
