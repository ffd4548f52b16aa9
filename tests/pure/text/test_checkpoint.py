"""A checkpoint directory is read as it is found in the wild: names in
three files, tokens as strings or objects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from python_backends.text.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from tests.support.text.checkpoints import byte_level_tokenizer, write_checkpoint

TOKENIZER = byte_level_tokenizer()


def read(directory: Path, texts: dict[str, Any] | None = None, **files: dict[str, Any]) -> Checkpoint:
    return read_checkpoint(write_checkpoint(directory, TOKENIZER, texts or {}, **files))


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        read_checkpoint(tmp_path)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TOKENIZER, {})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_checkpoint(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        read_checkpoint(tmp_path)


def test_every_file_may_name_ends(tmp_path: Path) -> None:
    files: dict[str, Any] = {"config": {"eos_token_id": 3}, "generation_config": {"eos_token_id": [4, 1]}}
    assert read(tmp_path, {"eos_token": "<|end|>"}, **files).eos_ids == (0, 1, 3, 4)


def test_a_tokenizer_alone_is_enough(tmp_path: Path) -> None:
    checkpoint = read(tmp_path)
    assert (checkpoint.eos_ids, checkpoint.max_model_tokens, checkpoint.chat_template) == ((), 0, None)
    assert checkpoint.vocab_size == TOKENIZER.get_vocab_size(with_added_tokens=True)


def test_sizes_come_from_the_configuration_or_its_text_part(tmp_path: Path) -> None:
    checkpoint = read(tmp_path, config={"text_config": {"n_positions": 64, "vocab_size": 512}})
    assert (checkpoint.max_model_tokens, checkpoint.vocab_size) == (64, 512)


def test_tokens_with_a_part_to_play_are_special_even_if_the_tokenizer_does_not_say_so(tmp_path: Path) -> None:
    plain = read(tmp_path)
    played = read(tmp_path, {"eos_token": {"content": "<think>"}})
    assert played.special_tokens - plain.special_tokens == {"<think>"}
    assert played.named_tokens == {"eos_token": "<think>"}


def test_older_checkpoints_name_their_tokens_in_a_file_of_their_own(tmp_path: Path) -> None:
    checkpoint = read(
        tmp_path, {"pad_token": None}, special_tokens_map={"eos_token": "<|end|>", "pad_token": "<|pad|>"}
    )
    assert checkpoint.named_tokens == {"eos_token": "<|end|>"}


def test_the_chat_template_is_a_string_a_list_of_named_ones_or_a_file(tmp_path: Path) -> None:
    assert read(tmp_path, {"chat_template": "a"}).chat_template == "a"
    named = [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "c"}]
    assert read(tmp_path, {"chat_template": named}).chat_template == "c"
    (tmp_path / "chat_template.jinja").write_text("d")
    assert read(tmp_path, {"chat_template": "a"}).chat_template == "d"
