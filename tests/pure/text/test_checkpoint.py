"""A checkpoint directory is read as it is found in the wild: names in
three files, tokens as strings or objects.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from python_backends.checkpoint.source import CheckpointError
from python_backends.nouns.request import Request
from python_backends.settings import LimitSettings
from python_backends.text.checkpoint import Checkpoint, read_checkpoint
from python_backends.text.detokenize.detokenizer import Detokenizer
from python_backends.text.door.door import open_door
from python_backends.text.door.template_sandbox import begin_rendering, environment
from tests.support.text.checkpoints import (
    LLAMA_TEMPLATE,
    byte_level_tokenizer,
    sentence_piece_tokenizer,
    write_checkpoint,
)

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


def test_a_tokenizer_that_was_saved_with_padding_and_truncation_takes_texts_as_they_are(
    tmp_path: Path,
) -> None:
    """transformers saves what a training asked for; guides and budgets of thoughts use this tokenizer."""
    batched = byte_level_tokenizer()
    batched.enable_padding(direction="left", length=64)
    batched.enable_truncation(2)
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, batched, {}))
    assert checkpoint.tokenizer.encode("hello there").ids == TOKENIZER.encode("hello there").ids


def test_a_plain_prompt_begins_with_bos_where_the_configuration_alone_says_so(tmp_path: Path) -> None:
    """A template writes its own."""
    trimmed = byte_level_tokenizer()
    trimmed.post_processor = processors.ByteLevel()
    said = {
        "bos_token": {"content": "<|end|>"},
        "eos_token": "<|pad|>",
        "add_bos_token": True,
        "chat_template": LLAMA_TEMPLATE,
    }
    written = write_checkpoint(tmp_path, trimmed, said, config={"max_position_embeddings": 128})
    checkpoint = read_checkpoint(written)
    door = open_door(checkpoint, LimitSettings())
    plain = door.answer({"text_input": " hello"})
    chat = door.answer({"messages": '[{"role": "user", "content": "hello"}]'})
    assert isinstance(plain, Request)
    assert isinstance(chat, Request)
    bare = trimmed.encode(" hello")
    assert plain.prompt.tolist() == [0, *bare.ids]
    assert (chat.prompt == 0).tolist() == [True, *[False] * (len(chat.prompt) - 1)]
    assert checkpoint.tokenizer.encode(" hello").offsets == [(0, 0), *bare.offsets]
    kept = read_checkpoint(write_checkpoint(tmp_path, trimmed, said | {"add_bos_token": False}))
    assert kept.tokenizer.encode(" hello").ids == bare.ids


def test_a_tokenizer_that_begins_with_bos_itself_writes_one(tmp_path: Path) -> None:
    said = {"bos_token": "<s>", "add_bos_token": True}
    written = sentence_piece_tokenizer()
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, written, said))
    assert checkpoint.tokenizer.encode("hello").tokens == ["<s>", "\u2581hello"]


def test_every_file_may_name_ends(tmp_path: Path) -> None:
    files: dict[str, Any] = {"config": {"eos_token_id": 3}, "generation_config": {"eos_token_id": [4, 1]}}
    assert read(tmp_path, {"eos_token": "<|end|>"}, **files).eos_ids == (0, 1, 3, 4)


def test_ends_of_a_model_that_takes_images_go_before_those_of_its_part_for_text(tmp_path: Path) -> None:
    """transformers writes a number of its own into Gemma 3's."""
    text = {"text_config": {"eos_token_id": 1}}
    assert read(tmp_path, config={"eos_token_id": [3, 4], **text}).eos_ids == (3, 4)
    assert read(tmp_path, config=text).eos_ids == (1,)


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


def test_a_single_character_is_special_only_where_it_ends_an_answer(tmp_path: Path) -> None:
    plain = read(tmp_path)
    ended = read(tmp_path, {"pad_token": "!", "eos_token": "\n"})
    assert ended.special_tokens - plain.special_tokens == {"\n"}
    assert ended.named_tokens == {"pad_token": "!", "eos_token": "\n"}


def test_older_checkpoints_name_their_tokens_in_a_file_of_their_own(tmp_path: Path) -> None:
    checkpoint = read(
        tmp_path, {"pad_token": None}, special_tokens_map={"eos_token": "<|end|>", "pad_token": "<|pad|>"}
    )
    assert checkpoint.named_tokens == {"eos_token": "<|end|>"}


def test_the_chat_template_is_a_string_a_list_of_named_ones_or_a_file(tmp_path: Path) -> None:
    assert read(tmp_path, {"chat_template": "a"}).chat_template == "a"
    named = [{"name": "rag", "template": "b"}, {"name": "default", "template": "c"}]
    assert read(tmp_path, {"chat_template": named}).chat_template == "c"
    (tmp_path / "chat_template.jinja").write_text("d")
    assert read(tmp_path, {"chat_template": "a"}).chat_template == "d"
    (tmp_path / "chat_template.jinja").unlink()
    assert read(tmp_path, {"chat_template": {"default": "e", "rag": "f"}}).chat_template == "e"
    assert read(tmp_path, {"chat_template": ""}, chat_template={"chat_template": "g"}).chat_template == "g"


@pytest.mark.parametrize("is_file", [False, True])
def test_a_template_for_tools_is_taken_where_there_are_some(tmp_path: Path, is_file: bool) -> None:
    """Each written as it is without the other one."""
    default, for_tools = "\nno tools  \n  ", "  \n{% for t in tools %}{{ t.n }}{% endfor %}\n"
    named = [{"name": "tool_use", "template": for_tools}, {"name": "default", "template": default}]
    if is_file:
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(for_tools)
        (tmp_path / "chat_template.jinja").write_text(default)
    source = read(tmp_path, {"chat_template": "x" if is_file else named}).chat_template
    assert source is not None
    made = environment()
    for tools, own in (([], default), ([{"n": "ls"}], for_tools)):
        begin_rendering(100, datetime.now())
        assert made.from_string(source).render(tools=tools) == made.from_string(own).render(tools=tools)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("chat_template.jinja", b"\xff", "invalid start byte"),
        ("chat_template.jinja", b" \n", "is empty"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "rag", "template": ""}]}', "it has: rag"),
        (
            "tokenizer_config.json",
            b'{"chat_template": {"rag": "a", "tool_use": "b"}}',
            "it has: rag, tool_use",
        ),
        ("tokenizer_config.json", b'{"chat_template": [5]}', "it has: none"),
        ("tokenizer_config.json", b'{"chat_template": {"default": 5}}', "must be a text, not int"),
        ("tokenizer_config.json", b'{"chat_template": true}', "must be a text, not bool"),
        ("tokenizer_config.json", b"\xff", "invalid start byte"),
        ("tokenizer_config.json", b"[" * 100_000, "recursion"),
        ("tokenizer_config.json", b"[]", "must hold a JSON object"),
        ("config.json", b'{"vocab_size": "many"}', "vocab_size = 'many': must be a whole number"),
        ("config.json", b'{"n_positions": [5]}', r"n_positions = \[5\]: must be a whole number"),
        ("config.json", b'{"eos_token_id": [[2]]}', r"eos_token_id = \[2\]: must be a whole number"),
        (
            "generation_config.json",
            b'{"eos_token_id": {"a": 1}}',
            "eos_token_id = .*: must be a whole number",
        ),
    ],
)
def test_what_can_not_be_read_is_an_error_of_one_line_that_names_the_file(
    tmp_path: Path, file: str, content: bytes, reason: str
) -> None:
    write_checkpoint(tmp_path, TOKENIZER, {})
    (tmp_path / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"(?s){tmp_path}/{file}: .*{reason}") as refused:
        read_checkpoint(tmp_path)
    assert "\n" not in str(refused.value)


def test_an_error_that_nobody_thought_of_names_the_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"{tmp_path}: .* TypeError: 'int' object is not iterable"):
        read(tmp_path, {"additional_special_tokens": 5})


def test_the_door_and_the_detokenizer_name_the_file_too(tmp_path: Path) -> None:
    checkpoint = read(tmp_path, {"chat_template": "{{ }"}, config={"n_positions": 64})
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/tokenizer_config.json: the chat template"):
        open_door(checkpoint, LimitSettings())
    undecoded = byte_level_tokenizer()
    undecoded.decoder = None  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/tokenizer.json has no decoder"):
        Detokenizer(read_checkpoint(write_checkpoint(tmp_path, undecoded, {})))
