"""What a request may cost at the door: how much of it is encoded,
counted in bytes. Nothing here measures time.
"""

from __future__ import annotations

import dataclasses
import json
from copy import copy
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Encoding

from python_backends.nouns.request import RefusedError, Request
from python_backends.settings import LimitSettings
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.door.door import Door, open_door
from python_backends.text.door.encoder import DIRECT_BYTES, PIECE_BYTES
from tests.support.text import kinds

ROOT = Path(__file__).resolve().parents[3]
CONTEXT = 2048
MEGABYTE = 1_000_000
MOST = 32 * CONTEXT  # bytes that are read at all
HOSTILE = {
    "one word": "a" * MEGABYTE,
    "spaces": " " * MEGABYTE,
    "lines": "\n" * MEGABYTE,
    "words": "hello world " * (MEGABYTE // 12),
    "special tokens": "<|end|></s><unk>" * (MEGABYTE // 16),
    "marks that are put in order": "e" + "\u0327\u0301\u0323" * (MEGABYTE // 6),
    "signs that become longer": "\ufdfa" * (MEGABYTE // 3),
    "what no vocabulary has": "\U0001f9ff" * (MEGABYTE // 4),
    "zeros": "\0" * MEGABYTE,
}
FRAME = 500  # bytes that a template adds
# of a text of which only so much is encoded until it has certainly too many tokens
STOPPED = 3 * PIECE_BYTES * CONTEXT + FRAME
LENGTHS = (MEGABYTE, MOST, 32_768, 12_289, 8192)


class Counted:
    """A door that counts the bytes of each text that it encodes."""

    def __init__(self, door: Door) -> None:
        self.sizes: list[int] = []
        encode, encoder = door.encoder.encoding, copy(door.encoder)

        def encoding(text: str) -> Encoding:
            self.sizes.append(len(text.encode()))
            return encode(text)

        encoder.encoding = encoding  # type: ignore[method-assign]
        self.door = dataclasses.replace(door, encoder=encoder)


@cache
def opened(kind: str) -> Door:
    return open_door(kinds.checkpoint(kind), LimitSettings(), CONTEXT, names_subjects=True)


def counted(kind: str) -> Counted:
    return Counted(opened(kind))


def chat(*contents: str) -> str:
    return json.dumps([{"role": "user", "content": content} for content in contents], ensure_ascii=False)


def cut(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")


@pytest.mark.parametrize("kind", kinds.TOKENIZERS)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_refused_has_cost_few_bytes(kind: str, text: str) -> None:
    for size in LENGTHS:
        for field in ({"text_input": cut(text, size)}, {"messages": chat(cut(text, size))}):
            asked = counted(kind)
            answer = asked.door.answer(field)
            assert sum(asked.sizes) <= (STOPPED if "more than" in str(answer) else 2 * (MOST + FRAME)), (
                size,
                answer,
            )
            if size > MOST:
                assert isinstance(answer, RefusedError)
                assert asked.sizes == []


def test_a_text_of_more_bytes_than_the_context_can_hold_is_refused_by_the_name_of_its_limit() -> None:
    for field, says in (
        ({"text_input": "a" * (MOST + 1)}, "text_input = 65537 bytes"),
        ({"messages": chat("a" * MOST, "a")}, "messages = 65537 bytes of content"),
    ):
        asked = counted("byte_level")
        answer = asked.door.answer(field)
        said = f"{says}: must be at most 65536 (32 a token of this model's context)"
        assert str(answer) == f"{said}. This model's maximum context length is 2048 tokens."
        assert asked.sizes == []


def test_a_text_with_far_too_many_tokens_is_not_encoded_to_its_end() -> None:
    asked = counted("byte_level")
    answer = asked.door.answer({"text_input": "q" * MOST})
    assert (
        str(answer)
        == "text_input = more than 2047 tokens: must be at most 2047. This model's maximum context length is"
        " 2048 tokens."
    )
    assert asked.sizes == [PIECE_BYTES * 2047]


def test_the_setting_below_the_context_ends_the_encoding_too() -> None:
    door = open_door(kinds.checkpoint("byte_level"), LimitSettings(max_prompt_tokens=1000), CONTEXT)
    asked = Counted(door)
    answer = asked.door.answer({"text_input": "q" * 32_000})
    said = "text_input = more than 1000 tokens: must be at most 1000 (limits.max_prompt_tokens)"
    end = "This model's maximum context length is 2048 tokens."
    assert str(answer) == f"{said}. {end}"
    assert sum(asked.sizes) < 10_000
    answer = asked.door.answer({"text_input": "q" * MOST})
    said = "text_input = 65536 bytes: must be at most 32000 (32 a token of limits.max_prompt_tokens)"
    assert str(answer) == f"{said}. {end}"


def test_a_long_text_of_long_tokens_is_taken() -> None:
    """More bytes than are encoded at once, and few enough tokens: as they are encoded whole."""
    text = "hello " * 1900
    asked = counted("llama_2")
    answer = asked.door.answer({"text_input": text})
    assert isinstance(answer, Request)
    assert len(text) > DIRECT_BYTES * 300
    assert answer.prompt.tolist() == kinds.checkpoint("llama_2").tokenizer.encode(text).ids


def test_a_text_with_few_tokens_for_its_bytes_gets_the_ids_of_the_library() -> None:
    checkpoint = read_checkpoint(ROOT / "models/bundled")
    text = ("\n" + " " * 24) * 1500  # a token each
    asked = Counted(open_door(checkpoint, LimitSettings(), CONTEXT))
    answer = asked.door.answer({"text_input": text})
    assert isinstance(answer, Request), answer
    assert answer.prompt.tolist() == checkpoint.tokenizer.encode(text).ids
    assert len(answer.prompt) == 1500
    assert len(asked.sizes) > 2, "it was looked at in pieces before"


def test_more_messages_than_tokens_are_refused_before_they_are_looked_at() -> None:
    answer = opened("byte_level").answer({"messages": json.dumps([{}] * 2049)})
    assert (
        str(answer)
        == "messages = 2049 messages: must be at most 2048, one for each token. This model's maximum context"
        " length is 2048 tokens."
    )


def test_a_refusal_keeps_nothing_of_what_it_refuses() -> None:
    """A batch of 64 took 780 MiB: an exception holds the frames that
    it came through, and these the messages.
    """
    refusal = opened("byte_level").answer({"messages": json.dumps([{}] * 2049)})
    assert isinstance(refusal, RefusedError)
    assert (refusal.__traceback__, refusal.__context__, refusal.__cause__) == (None, None, None)


def test_the_first_bad_word_with_too_many_tokens_ends_the_encoding() -> None:
    asked = counted("byte_level")
    answer = asked.door.answer(
        {"text_input": "a", "bad_words": ["q" * 200, *(f"{i}" * 90 for i in range(60))]}
    )
    assert str(answer).startswith("bad_words[0] = 200 tokens")
    assert asked.sizes == [1, 200]


def test_a_prompt_that_is_refused_is_refused_alone() -> None:
    texts = ("hello", "q" * MEGABYTE, "q" * MOST, "world")
    answers = [opened("byte_level").answer({"text_input": text}) for text in texts]
    assert [isinstance(answer, Request) for answer in answers] == [True, False, False, True]


def test_the_subject_is_looked_for_after_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that has nearly the question in it again and again once took 16 seconds."""
    from python_backends.text.door import door as module

    looked: list[str] = []
    monkeypatch.setattr(module, "of_messages", lambda *_args: looked.append("subject"))
    size = MOST // 8
    messages = [
        {"role": "user", "content": "a" * size + "b" + "a" * size},
        {"role": "assistant", "content": "a" * 5 * size},
    ]
    assert isinstance(opened("byte_level").answer({"messages": json.dumps(messages)}), RefusedError)
    assert looked == []


def test_the_bytes_that_are_read_are_in_the_docs() -> None:
    text = (ROOT / "docs" / "limits.md").read_text()
    assert "32 bytes a token" in text
