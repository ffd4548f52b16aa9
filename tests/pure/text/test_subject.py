"""What counts as the instruction, and what as the input (docs/prediction.md)."""

from __future__ import annotations

from typing import Any

import pytest

from python_backends.nouns.request import RefusedError, Request, Subject
from python_backends.settings import LimitSettings
from python_backends.text.door.door import open_door
from python_backends.text.door.subject import MAX_READ_CHARS, num_tokens_of, of_messages, of_text
from tests.support.text.checkpoints import byte_level


@pytest.mark.parametrize(
    ("text", "instruction", "given"),
    [
        ("Convert to camelCase: a_b", "Convert to camelCase", "a_b"),
        ("Convert to camelCase\ndef a_b():\n    pass", "Convert to camelCase", "def a_b():\n    pass"),
        ("Reword politely:\nHey you: go!", "Reword politely", "Hey you: go!"),
        ("Tell me a joke", "", "Tell me a joke"),
        ("word " * 60 + ": x", "", "word " * 60 + ": x"),  # so long a beginning is no instruction
        ("", "", ""),
        (":", "", ""),
    ],
)
def test_a_text_is_cut_at_its_first_colon_or_line_break(text: str, instruction: str, given: str) -> None:
    assert of_text(text) == (instruction, given)


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_in_a_chat_it_is_the_system_message_and_the_last_user_message() -> None:
    chat = [
        message("system", "You translate."),
        message("user", "old"),
        message("assistant", "alt"),
        message("user", "new: one"),
    ]
    assert of_messages(chat) == ("You translate.", "new: one")


def test_a_chat_without_a_system_message_is_read_like_a_text() -> None:
    assert of_messages([message("user", "Fix the bug: x = = 1")]) == ("Fix the bug", "x = = 1")


def test_an_explicit_instruction_counts_and_is_no_part_of_the_input() -> None:
    assert of_text("Fix this\nx: y", "Fix this") == ("Fix this", "x: y")
    assert of_text("x: y", "Fix") == ("Fix", "x: y")
    chat = [message("system", "You are kind."), message("user", "x: y")]
    assert of_messages(chat, "Fix") == ("Fix", "x: y")


def admitted(**fields: Any) -> Request | RefusedError:
    return open_door(byte_level(), LimitSettings(), 1 << 16, names_subjects=True).answer(fields)


def test_the_door_counts_the_tokens_of_the_input_alone() -> None:
    request = admitted(text_input="Say it:\nabc", max_tokens=3)
    assert isinstance(request, Request)
    assert request.subject == Subject(
        "Say it", "abc", len(open_door(byte_level(), LimitSettings(), 99).encoder.encode("abc")), 3
    )


def test_a_long_input_is_cut_but_counted_whole() -> None:
    text = "ab " * MAX_READ_CHARS
    request = admitted(text_input="Say it:" + text, max_tokens=1)
    assert isinstance(request, Request)
    assert request.subject is not None
    assert len(request.subject.user_input) == MAX_READ_CHARS
    assert request.subject.num_input_tokens == pytest.approx(len(request.prompt), rel=0.02)


def test_an_input_that_the_prompt_spells_differently_is_counted_by_its_share_of_the_characters() -> None:
    encoding = byte_level().tokenizer.encode("abcabcabcabc")
    count = len(encoding)
    assert num_tokens_of("ABC", "abcabcabcabc", count, encoding) == round(count / 4)
    assert num_tokens_of("abc", "abcabcabcabc", count, None) == round(count / 4)
    assert num_tokens_of(" ", "abcabcabcabc", count, encoding) == 0


def test_a_prompt_of_ids_is_divided_by_its_text() -> None:
    ids = byte_level().tokenizer.encode("Say it:\nabc").ids
    request = admitted(input_ids=ids, max_tokens=3)
    assert isinstance(request, Request)
    assert request.subject == Subject("Say it", "abc", round(len(ids) * 3 / len("Say it:\nabc")), 3)


def test_nothing_is_counted_where_nothing_is_predicted() -> None:
    request = open_door(byte_level(), LimitSettings(), 99).answer({"text_input": "Say it: abc"})
    assert isinstance(request, Request)
    assert request.subject is None


def test_an_instruction_of_the_wrong_kind_or_length_is_refused_by_name() -> None:
    assert "instruction = 5000 bytes: must be at most 4096" in str(
        admitted(text_input="a", instruction="x" * 5000)
    )
    assert "instruction = 3: must be a string" in str(admitted(text_input="a", instruction=3))
