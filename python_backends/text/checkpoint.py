"""Reads the text files of a Hugging Face checkpoint directory: tokenizer, special tokens, chat template, end
tokens, sizes.

Reads each file once, at start-up. Loads no weights and runs no code of the checkpoint. The door and the
detokenizer are built from the result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# lists of tokens; the second may be an object with a name for each token
_EXTRA_TOKENS = ("additional_special_tokens", "extra_special_tokens")
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")


class CheckpointError(ValueError):
    """The checkpoint can't be served. The message names the file and the problem."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The text side of a model. `tokenizer` is unchanged from the file; code that changes it makes a copy."""

    directory: Path
    tokenizer: Tokenizer
    named_tokens: Mapping[str, str]  # bos_token, eos_token …: the names that chat templates use
    special_tokens: frozenset[str]  # not printed in answers, not recognized in users' text
    chat_template: str | None
    eos_ids: tuple[int, ...]
    max_model_tokens: int  # the model's context; 0 if the checkpoint doesn't say
    vocab_size: int  # ids are below this; includes the padded rows of the embedding


def read_checkpoint(directory: Path) -> Checkpoint:
    """Reads the checkpoint in `directory`. Raises CheckpointError."""
    tokenizer = _tokenizer(directory / "tokenizer.json")
    texts = {**_table(directory / "special_tokens_map.json"), **_table(directory / "tokenizer_config.json")}
    config = _table(directory / "config.json")
    text_part = config.get("text_config")  # models that also take images or audio have it
    if isinstance(text_part, dict):
        config |= text_part
    generation = _table(directory / "generation_config.json")
    named = {name: text for name in _NAMED_TOKENS if (text := _content(texts.get(name)))}
    return Checkpoint(
        directory=directory,
        tokenizer=tokenizer,
        named_tokens=named,
        special_tokens=_special_tokens(tokenizer, texts, named),
        chat_template=_chat_template(directory, texts),
        eos_ids=_eos_ids(tokenizer, named, generation.get("eos_token_id"), config.get("eos_token_id")),
        max_model_tokens=next((int(config[name]) for name in _CONTEXT_NAMES if config.get(name)), 0),
        vocab_size=max(int(config.get("vocab_size") or 0), num_ids(tokenizer)),
    )


def _tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: a checkpoint needs a fast tokenizer (tokenizer.json)")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointError(f"{path}: {error}") from error


def _table(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file, or an empty one if the file is absent."""
    try:
        value = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return value


def _content(token: Any) -> str:
    """Returns the text of a token, which is written as a string or as an object with `content`."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _special_tokens(tokenizer: Tokenizer, texts: dict[str, Any], named: dict[str, str]) -> frozenset[str]:
    """Returns the tokens that the tokenizer marks as special or that the configuration names."""
    known = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    played = {*named.values(), *(token for name in _EXTRA_TOKENS for token in _contents(texts.get(name)))}
    return frozenset(text for text, special in known.items() if special or text in played)


def _contents(tokens: Any) -> list[str]:
    return [_content(token) for token in (tokens.values() if isinstance(tokens, dict) else tokens or [])]


def _chat_template(directory: Path, texts: dict[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    template = texts.get("chat_template")
    if isinstance(template, list):
        named = {
            str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)
        }
        template = named.get("default")
    return template if isinstance(template, str) else None


def _eos_ids(tokenizer: Tokenizer, named: dict[str, str], *configured: Any) -> tuple[int, ...]:
    """Returns every id that a file of the checkpoint names as an end token. Chat models often have a second
    one, in only one of the files.
    """
    ids = {tokenizer.token_to_id(named["eos_token"])} if "eos_token" in named else set()
    for entry in configured:
        ids.update(entry if isinstance(entry, list) else [entry])
    return tuple(sorted(int(token_id) for token_id in ids if token_id is not None and int(token_id) >= 0))


def num_ids(tokenizer: Tokenizer) -> int:
    """Returns one more than the largest id, added tokens included."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
