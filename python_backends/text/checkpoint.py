"""Reads the text files of a Hugging Face checkpoint directory: tokenizer, special tokens, chat template, end
tokens, sizes.

Reads each file once, at start-up. Loads no weights and runs no code of the checkpoint. The door and the
detokenizer are built from the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from python_backends.checkpoint.config_file import read_table

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
    template_file: Path | None  # where it was found
    eos_ids: tuple[int, ...]
    max_model_tokens: int  # the model's context; 0 if the checkpoint doesn't say
    vocab_size: int  # ids are below this; includes the padded rows of the embedding
    num_rows: int  # of the embedding: a token of the tokenizer with a larger id can't be computed


def read_checkpoint(directory: Path) -> Checkpoint:
    """Reads the checkpoint in `directory`. Raises CheckpointError, and nothing else."""
    with as_checkpoint_error(directory):
        return _read(directory)


@contextmanager
def as_checkpoint_error(directory: Path) -> Iterator[None]:
    """Whatever goes wrong with the files of a checkpoint becomes a CheckpointError of one line that names the
    directory: files of strangers may hold anything.
    """
    try:
        yield
    except CheckpointError as error:
        if str(directory) in str(error):
            raise
        raise CheckpointError(f"{directory}/{error}") from error
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(f"{directory}: its files for text can't be used: {reason}") from error


def _read(directory: Path) -> Checkpoint:
    tokenizer = _tokenizer(directory / "tokenizer.json")
    texts = {**_table(directory / "special_tokens_map.json"), **_table(directory / "tokenizer_config.json")}
    config = _table(directory / "config.json")
    text_part = config.get("text_config")  # models that also take images or audio have it
    if isinstance(text_part, dict):
        config |= text_part
    generation = _table(directory / "generation_config.json")
    names = {name: text for name in _NAMED_TOKENS if (text := _content(texts.get(name)))}
    chat_template, template_file = _chat_template(directory, texts)
    path = directory / "config.json"
    num_rows = _whole(path, "vocab_size", config.get("vocab_size") or 0)
    return Checkpoint(
        directory=directory,
        tokenizer=tokenizer,
        named_tokens=names,
        special_tokens=_special_tokens(tokenizer, texts, names),
        chat_template=chat_template,
        template_file=template_file,
        eos_ids=_eos_ids(directory, tokenizer, names, generation, config),
        max_model_tokens=next(
            (_whole(path, name, config[name]) for name in _CONTEXT_NAMES if config.get(name)), 0
        ),
        vocab_size=max(num_rows, num_ids(tokenizer)),
        num_rows=num_rows or num_ids(tokenizer),
    )


def _tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: a checkpoint needs a fast tokenizer (tokenizer.json)")
    try:
        return Tokenizer.from_buffer(path.read_bytes())  # takes any path
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointError(f"{path}: {error}") from error


def _table(path: Path) -> dict[str, Any]:
    try:
        return read_table(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error


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


def _chat_template(directory: Path, texts: dict[str, Any]) -> tuple[str | None, Path | None]:
    """Returns the template and its file, (None, None) if there is none."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return _jinja(path), path
    for path, table in (
        (directory / "tokenizer_config.json", texts),
        (directory / "chat_template.json", _table(directory / "chat_template.json")),
    ):
        if table.get("chat_template"):
            return _template_of(path, table["chat_template"]), path
    return None, None


def _template_of(path: Path, written: Any) -> str:
    """Returns the template that is written as a text, or as several with names. Raises CheckpointError."""
    if isinstance(written, list):
        written = {entry.get("name"): entry.get("template") for entry in written if isinstance(entry, dict)}
    if isinstance(written, dict):
        names = ", ".join(map(str, written)) or "none"
        if "default" not in written:
            raise CheckpointError(f"{path}: chat_template has no template named default (it has: {names})")
        written = written["default"]
    if not isinstance(written, str):
        raise CheckpointError(f"{path}: chat_template must be a text, not {type(written).__name__}")
    return written


def _jinja(path: Path) -> str:
    try:
        source = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not source.strip():
        raise CheckpointError(f"{path}: is empty")
    return source


def _eos_ids(
    directory: Path,
    tokenizer: Tokenizer,
    names: dict[str, str],
    generation: dict[str, Any],
    config: dict[str, Any],
) -> tuple[int, ...]:
    """Returns every id that a file of the checkpoint names as an end token. Chat models often have a second
    one, in only one of the files.
    """
    ids = {tokenizer.token_to_id(names["eos_token"])} if "eos_token" in names else set()
    for file, table in (("generation_config.json", generation), ("config.json", config)):
        entry = table.get("eos_token_id")
        for each in entry if isinstance(entry, list) else [entry]:
            ids.add(None if each is None else _whole(directory / file, "eos_token_id", each))
    return tuple(sorted(token_id for token_id in ids if token_id is not None and token_id >= 0))


def _whole(path: Path, name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{path}: {name} = {value!r}: must be a whole number") from error


def num_ids(tokenizer: Tokenizer) -> int:
    """Returns one more than the largest id, added tokens included."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
