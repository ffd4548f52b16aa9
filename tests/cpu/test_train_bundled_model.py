"""Training of the bundled model goes on with the tokenizer and the lexicon that it began with."""

from __future__ import annotations

from pathlib import Path

import pytest
import train_bundled_model
from bundled.corpus import Corpus
from bundled.tasks import Task
from train_bundled_model import load_lexicon, load_tokenizer

NAMES = Task("names", ("Convert to camelCase:",), lambda *_: ("read_lines(file)", "readLines(file)"), (1, 90))


def test_a_lexicon_is_made_once(tmp_path: Path) -> None:
    """The library of another Python has other frequent words."""
    made = load_lexicon(tmp_path, Corpus([["The reader returns all lines of the file."]]))
    assert {"reader", "returns", "file"} <= made.keys()
    assert load_lexicon(tmp_path, Corpus([["Other words make another lexicon."]])) == made


def test_a_tokenizer_is_trained_once_and_cuts_names_at_their_joints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_bundled_model, "TOKENIZER_EXAMPLES", 40)
    tokenizer = load_tokenizer(tmp_path, Corpus(), [NAMES], 400)
    snake, camel = (tokenizer.tokenize(name) for name in ("read_lines", "readLines"))
    assert (snake[:2], camel[:2]) == (["read", "_l"], ["read", "L"])
    assert snake[2:] == camel[2:]
    again = load_tokenizer(tmp_path, Corpus(), [], 300)
    assert again.get_vocab() == tokenizer.get_vocab()
