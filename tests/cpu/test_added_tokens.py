"""Tokens that only a tokenizer's configuration knows get the ids, and split texts, as in transformers; a
text is cut into the words with which a model was trained.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from python_backends.checkpoint.gguf.splits import LLAMA3
from python_backends.checkpoint.opening import open_source
from python_backends.text.checkpoint import read_checkpoint

BUNDLED = Path(__file__).resolve().parents[2] / "models/bundled"
MARK, NEW = "<|assistant|>", "<|new|>"
TEXTS = (
    f"a{MARK}b",
    f"x {NEW} y",
    f"{NEW}{MARK}<|user|>{NEW}",
    "plain <|end|> text",
    "<tool>A</tool> <TOOL>",
)


def token(content: str, **others: Any) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": content, "special": True} | flags | others


def typed(content: str, **others: Any) -> dict[str, Any]:
    return {"__type": "AddedToken"} | token(content, **others)


# files beside tokenizer.json (None: the field is not there), and whether that keeps its own added tokens
CONFIGURED: dict[str, tuple[dict[str, Any], bool]] = {
    "as it is": ({}, True),
    "a list": ({"additional_special_tokens": [MARK, "<|user|>", NEW]}, False),
    "a list of objects": ({"extra_special_tokens": [typed(MARK), typed(NEW, rstrip=True)]}, False),
    "a decoder": (
        {"added_tokens_decoder": {"4": token(MARK), "4096": token(NEW, special=False)}},
        False,
    ),
    "a decoder out of order": (
        {"added_tokens_decoder": {"4097": token("<tool>", special=False), "4096": token(NEW)}},
        True,
    ),
    "an object of names": ({"extra_special_tokens": {"assistant_token": MARK, "new_token": NEW}}, False),
    "a name of its own": ({"image_token": NEW}, True),
    "a named token": ({"unk_token": NEW, "mask_token": typed(MARK)}, False),
    "special by the decoder": ({"added_tokens_decoder": {"4": token(MARK, lstrip=True)}}, True),
}


def changed(path: Path, values: dict[str, Any]) -> None:
    read = json.loads(path.read_text()) | values
    path.write_text(json.dumps({name: value for name, value in read.items() if value is not None}))


def copied(directory: Path, configured: dict[str, Any], keeps: bool) -> Path:
    shutil.copytree(BUNDLED, directory)
    tokens = json.loads((directory / "tokenizer.json").read_text())["added_tokens"]
    kept = [each for each in tokens if keeps or each["content"] != MARK]
    changed(directory / "tokenizer.json", {"added_tokens": kept})
    changed(directory / "tokenizer_config.json", {"additional_special_tokens": None} | configured)
    return directory


def compared(directory: Path) -> None:
    ours, theirs = open_source(directory).tokenizer(), AutoTokenizer.from_pretrained(directory)
    for text in TEXTS:
        assert (
            ours.encode(text, add_special_tokens=False).ids
            == theirs(text, add_special_tokens=False)["input_ids"]
        ), text
    marked = {each.content for each in theirs.added_tokens_decoder.values() if each.special}
    assert read_checkpoint(directory).special_tokens == marked


@pytest.mark.parametrize("what", CONFIGURED)
def test_markers_of_the_configuration_are_tokens_as_in_transformers(tmp_path: Path, what: str) -> None:
    compared(copied(tmp_path / "model", *CONFIGURED[what]))


def test_markers_of_the_oldest_file_are_tokens_as_in_transformers(tmp_path: Path) -> None:
    directory = copied(tmp_path / "model", {}, keeps=False)
    (directory / "added_tokens.json").write_text(json.dumps({NEW: 4096, MARK: 4}))
    compared(directory)


def test_a_tokenizer_that_says_everything_itself_stays_as_it_is() -> None:
    written = json.loads((BUNDLED / "tokenizer.json").read_text())
    assert json.loads(open_source(BUNDLED).tokenizer().to_str())["added_tokens"] == written["added_tokens"]


WORDS = "getUserName's HTTPServer 2026, path/to//\n\nISN'T naïveÉtat"


def cut_as_llama3(directory: Path, specials: list[str]) -> Path:
    """A checkpoint of more than 100,000 tokens: transformers takes only such a vocabulary for Mistral's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([WORDS] * 3, trainer)
    written = json.loads(tokenizer.to_str())
    vocabulary = written["model"]["vocab"]
    vocabulary.update({f"\0{token}": token for token in range(len(vocabulary), 100_001)})
    (directory / "tokenizer.json").write_text(json.dumps(written))
    (directory / "config.json").write_text('{"model_type": "mistral", "transformers_version": "4.57.0"}')
    return directory


def test_words_of_llama_3_beside_the_vocabulary_of_mistral_are_mistrals(tmp_path: Path) -> None:
    directory = cut_as_llama3(tmp_path, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    wrong, right = (
        PreTrainedTokenizerFast.from_pretrained(directory, fix_mistral_regex=fixed) for fixed in (False, True)
    )
    ids = open_source(directory).tokenizer().encode(WORDS).ids
    assert ids == right(WORDS).input_ids != wrong(WORDS).input_ids


def test_a_tokenizer_without_a_step_before_its_merges_is_read(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert open_source(tmp_path).tokenizer().encode("a").ids == [0]


def test_words_of_llama_3_beside_another_vocabulary_stay(tmp_path: Path) -> None:
    directory = cut_as_llama3(tmp_path, ["<|begin_of_text|>", "<|end_of_text|>"])
    written = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert open_source(directory).tokenizer().encode(WORDS).ids == written.encode(WORDS).ids
