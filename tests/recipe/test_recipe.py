"""Training of the bundled model goes on with the tokenizer and the lexicon that it began with."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from models.recipe import __main__ as recipe
from models.recipe.__main__ import keep_words, load_lexicon, load_tokenizer
from models.recipe.corpus import Corpus
from models.recipe.tasks import Task
from models.recipe.velin import read_lexicon, write_lexicon

MODEL = Path(__file__).resolve().parents[2] / "models" / "bundled"
NAMES = Task("names", ("Convert to camelCase:",), lambda *_: ("read_lines(file)", "readLines(file)"), (1, 90))


def test_a_lexicon_is_made_once(tmp_path: Path) -> None:
    """The library of another Python has other frequent words."""
    made = load_lexicon(tmp_path, Corpus([["The reader returns all lines of the file."]]))
    assert {"reader", "returns", "file"} <= made.keys()
    assert load_lexicon(tmp_path, Corpus([["Other words make another lexicon."]])) == made


def test_a_tokenizer_is_trained_once_and_cuts_names_at_their_joints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "TOKENIZER_EXAMPLES", 40)
    tokenizer = load_tokenizer(tmp_path, Corpus(), [NAMES], 400)
    snake, camel = (tokenizer.tokenize(name) for name in ("read_lines", "readLines"))
    assert (snake[:2], camel[:2]) == (["read", "_l"], ["read", "L"])
    assert snake[2:] == camel[2:]
    again = load_tokenizer(tmp_path, Corpus(), [], 300)
    assert again.get_vocab() == tokenizer.get_vocab()


def test_a_training_that_continues_has_the_tokenizer_and_the_lexicon_of_the_model(tmp_path: Path) -> None:
    """They are copied once; a checkpoint that has its own keeps them."""
    keep_words(MODEL, tmp_path)
    kept = load_tokenizer(tmp_path, Corpus(), [], 300)
    assert kept.get_vocab() == PreTrainedTokenizerFast.from_pretrained(MODEL).get_vocab()
    assert load_lexicon(tmp_path, Corpus()) == read_lexicon(MODEL)
    write_lexicon({"file": "netok"}, tmp_path)
    keep_words(MODEL, tmp_path)
    assert load_lexicon(tmp_path, Corpus()) == {"file": "netok"}
