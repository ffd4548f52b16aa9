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

from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# lists of tokens; the second may be an object with a name for each token
_EXTRA_TOKENS = ("additional_special_tokens", "extra_special_tokens")
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")


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
    source = open_source(directory)
    tokenizer, texts, config = source.tokenizer(), source.texts, source.config
    names = {name: text for name in _NAMED_TOKENS if (text := _content(texts.get(name)))}
    chat_template, template_file = source.chat_template
    path = directory / "config.json"
    num_rows = _whole(path, "vocab_size", config.get("vocab_size") or 0)
    return Checkpoint(
        directory=directory,
        tokenizer=tokenizer,
        named_tokens=names,
        special_tokens=_special_tokens(tokenizer, texts, names),
        chat_template=chat_template,
        template_file=template_file,
        eos_ids=_eos_ids(directory, tokenizer, names, source.generation, config),
        max_model_tokens=next(
            (_whole(path, name, config[name]) for name in _CONTEXT_NAMES if config.get(name)), 0
        ),
        vocab_size=max(num_rows, num_ids(tokenizer)),
        num_rows=num_rows or num_ids(tokenizer),
    )


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
