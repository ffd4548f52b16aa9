"""What a Hugging Face checkpoint directory says about text: tokenizer, special tokens, chat template, ends,
sizes.

Reads files once, at start-up; loads no weights and runs nothing of the checkpoint. The door and the
detokenizer are built from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# lists; the second may be a table of names
_EXTRA_TOKENS = ("additional_special_tokens", "extra_special_tokens")
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")


class CheckpointError(ValueError):
    """A checkpoint that can't be served: the message names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The text side of a model. `tokenizer` is as in the file; code that changes it makes a copy."""

    directory: Path
    tokenizer: Tokenizer
    named_tokens: Mapping[str, str]  # bos_token, eos_token … as chat templates know them
    special_tokens: frozenset[str]  # never printed, and never read in what users write
    chat_template: str | None
    eos_ids: tuple[int, ...]
    max_model_tokens: int  # the model's context; 0 if the checkpoint doesn't say
    vocab_size: int  # ids are below this; padded rows of the embedding count


def read_checkpoint(directory: Path) -> Checkpoint:
    """Raises CheckpointError."""
    tokenizer = _tokenizer(directory / "tokenizer.json")
    texts = {**_table(directory / "special_tokens_map.json"), **_table(directory / "tokenizer_config.json")}
    config = _table(directory / "config.json")
    # models with images or sound keep the configuration of their text part there
    config = {**config, **_section(config, "text_config")}
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
        vocab_size=max(int(config.get("vocab_size") or 0), _num_ids(tokenizer)),
    )


def _tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: a checkpoint needs a fast tokenizer (tokenizer.json)")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointError(f"{path}: {error}") from error


def _table(path: Path) -> dict[str, Any]:
    """A JSON object; an absent file is an empty one."""
    try:
        value = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return value


def _section(table: dict[str, Any], name: str) -> dict[str, Any]:
    value = table.get(name)
    return value if isinstance(value, dict) else {}


def _content(token: Any) -> str:
    """A token is written as a string, or as an object with its content."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _special_tokens(tokenizer: Tokenizer, texts: dict[str, Any], named: dict[str, str]) -> frozenset[str]:
    """Those that the tokenizer marks as special, and those that the configuration names for a purpose
    (bos_token, eos_token).
    """
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
    """Every id that some file of the checkpoint calls an end: chat models
    often keep a second one in only one of them.
    """
    ids = {tokenizer.token_to_id(named["eos_token"])} if "eos_token" in named else set()
    for entry in configured:
        ids.update(entry if isinstance(entry, list) else [entry])
    return tuple(sorted(int(token_id) for token_id in ids if token_id is not None and int(token_id) >= 0))


def _num_ids(tokenizer: Tokenizer) -> int:
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
