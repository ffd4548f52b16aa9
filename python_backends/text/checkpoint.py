"""Reads the text side of a checkpoint, a directory or a GGUF file: tokenizer, special tokens, chat template,
end tokens, sizes.

Reads each file once, at start-up. Loads no weights and runs no code of the checkpoint. The door and the
detokenizer are built from the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from python_backends.checkpoint.added_tokens import NAMED_TOKENS, content
from python_backends.checkpoint.facts import read_facts
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The text side of a model. Code that changes `tokenizer` makes a copy."""

    directory: Path  # or file
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
        raise CheckpointError(f"{directory}{': ' if directory.is_file() else '/'}{error}") from error
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise CheckpointError(f"{directory}: its files for text can't be used: {reason}") from error


def _read(directory: Path) -> Checkpoint:
    source = open_source(directory)
    tokenizer, texts, facts = source.tokenizer(), source.texts, read_facts(source)
    names = {name: text for name in NAMED_TOKENS if (text := content(texts.get(name)))}
    chat_template, template_file = source.chat_template
    end = tokenizer.token_to_id(names["eos_token"]) if "eos_token" in names else None
    eos_ids = tuple(sorted({*facts.end_ids, *([] if end is None else [end])}))
    return Checkpoint(
        directory=directory,
        tokenizer=tokenizer,
        named_tokens=names,
        special_tokens=_special_tokens(tokenizer, eos_ids),
        chat_template=chat_template,
        template_file=template_file,
        eos_ids=eos_ids,
        max_model_tokens=facts.context,
        vocab_size=max(facts.vocab_size, num_ids(tokenizer)),
        num_rows=facts.vocab_size or num_ids(tokenizer),
    )


def _special_tokens(tokenizer: Tokenizer, eos_ids: Collection[int]) -> frozenset[str]:
    """Those that the tokenizer marks as special; those with a name in the configuration are. A single
    character is text, as the "!" that pads where `pad_token_id` was set to 0, unless it ends an answer.
    """
    tokens = tokenizer.get_added_tokens_decoder().items()
    return frozenset(
        token.content
        for token_id, token in tokens
        if token.special and (len(token.content) > 1 or token_id in eos_ids)
    )


def num_ids(tokenizer: Tokenizer) -> int:
    """Returns one more than the largest id, added tokens included."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
