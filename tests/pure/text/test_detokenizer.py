"""Windows of an answer, cut and acknowledged anyhow, give its text:
all of it, once, up to the first stop word.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from python_backends.checkpoint.source import CheckpointError
from python_backends.nouns.request import Finish, TokenWindow
from python_backends.text.detokenize.detokenizer import Detokenizer, Piece, context_tokens
from python_backends.text.detokenize.token_bytes import WALL
from tests.support.examples import examples
from tests.support.text.checkpoints import byte_level, sentence_piece
from tests.support.text.windows import Stream, steps

CHECKPOINTS = {"byte_level": byte_level(), "sentence_piece": sentence_piece()}
DETOKENIZERS = {name: Detokenizer(checkpoint) for name, checkpoint in CHECKPOINTS.items()}
FAMILIES = sorted(CHECKPOINTS)

phrases = st.sampled_from(
    [
        "hello world",
        " stop",
        "stop",
        "नमस्ते",
        "你好",
        "שלום",
        "👨‍👩‍👧‍👦",
        "e\u0301",
        "  ",
        " ",
        "\n",
        "<think>",
        "ÿþ",
        "end",
    ]
)
texts = st.lists(phrases | st.text(max_size=4), max_size=8).map("".join)


def answers(family: str) -> st.SearchStrategy[list[int]]:
    """Runs of text, of specials and of any tokens at all (half
    characters, invalid bytes, rows without a token).
    """
    checkpoint = CHECKPOINTS[family]
    text = texts.map(lambda text: checkpoint.tokenizer.encode(text, add_special_tokens=False).ids)
    anything = st.lists(st.integers(0, checkpoint.vocab_size - 1), max_size=6)
    specials = st.lists(st.sampled_from([0, 1, 2]), max_size=12)
    return st.lists(text | anything | specials, max_size=6).map(
        lambda runs: [token for run in runs for token in run]
    )


def whole_bytes(family: str, tokens: list[int]) -> bytes:
    """What the tokens stand for, with walls, and without the leading space; the slow way."""
    table = DETOKENIZERS[family]._bytes.table
    data = [table[token] for token in tokens]
    first = next((i for i, token in enumerate(data) if token != WALL), len(data))
    if family == "sentence_piece" and first < min(8, len(data)) and data[first].startswith(b" "):
        data[first] = data[first][1:] or WALL
    return b"".join(data)


def printed(data: bytes) -> str:
    return "".join(part.decode("utf-8", "replace") for part in data.split(WALL))


def first_stop(family: str, tokens: list[int], words: list[str], min_tokens: int) -> tuple[int, str] | None:
    """(tokens up to the first stop word's end, text before it), byte by byte."""
    passed = 0
    for count in range(1, len(tokens) + 1):
        data = whole_bytes(family, tokens[:count])
        for end in range(passed + 1, len(data) + 1) if count > min_tokens else ():
            hits = [word.encode() for word in words if data[:end].endswith(word.encode())]
            if hits:
                return count, printed(data[: end - max(map(len, hits))])
        passed = len(data)
    return None


def stream_of(family: str, tokens: list[int], words: tuple[str, ...] = (), min_tokens: int = 0) -> Stream:
    return Stream(DETOKENIZERS[family], tokens, words, min_tokens)


@pytest.mark.parametrize("family", FAMILIES)
@examples
@given(data=st.data(), steps=steps)
def test_any_windows_of_an_answer_add_up_to_its_text(
    family: str, data: st.DataObject, steps: list[tuple[int, int, int]]
) -> None:
    tokens = data.draw(answers(family))
    stream = stream_of(family, tokens)
    assert stream.run(steps) == 0
    assert stream.text == printed(whole_bytes(family, tokens))


@pytest.mark.parametrize("family", FAMILIES)
@examples
@given(data=st.data(), steps=steps, min_tokens=st.integers(0, 12))
def test_any_windows_add_up_to_the_text_before_the_first_stop_word(
    family: str, data: st.DataObject, steps: list[tuple[int, int, int]], min_tokens: int
) -> None:
    tokens = data.draw(answers(family))
    text = printed(whole_bytes(family, tokens))
    pieces = st.tuples(st.integers(0, max(0, len(text) - 1)), st.integers(1, 6)).map(
        lambda cut: text[cut[0] : cut[0] + cut[1]]
    )
    words = data.draw(
        st.lists(
            pieces | st.sampled_from(["stop", " stop", "p s", "ll", "lo w", "llo", "end", "मस्", "好", "👧"]),
            max_size=4,
        )
    )
    # an undecodable byte is no character that one could ask for
    words = [word for word in words if word and "\ufffd" not in word]
    assume(words)
    expected = first_stop(family, tokens, words, min_tokens)
    stream = stream_of(family, tokens, tuple(words), min_tokens)
    stopped_at = stream.run(steps)
    assert (stopped_at, stream.text) == (expected or (0, text))


SPELLED = {
    name: [checkpoint.tokenizer.id_to_token(token) for token in (0, 1, 2)]
    for name, checkpoint in CHECKPOINTS.items()
}


@pytest.mark.parametrize("family", FAMILIES)
@examples
@given(data=st.data(), steps=steps, min_tokens=st.integers(0, 12))
def test_any_windows_stop_at_a_stop_word_with_special_tokens(
    family: str, data: st.DataObject, steps: list[tuple[int, int, int]], min_tokens: int
) -> None:
    """Letters and special tokens, one token each, so that both sides are lists of tokens."""
    letters = {letter: encoded("byte_level", letter)[0] for letter in "ab\n"}
    if family == "sentence_piece":
        letters = {letter: byte_tokens(letter.encode())[0] for letter in "ab\n"}
    letters |= {text: token for token, text in enumerate(SPELLED[family])}
    pieces = st.lists(st.sampled_from(sorted(letters)), min_size=1, max_size=3)
    answer, words = (
        data.draw(st.lists(st.sampled_from(sorted(letters)), max_size=30)),
        data.draw(st.lists(pieces, min_size=1, max_size=3)),
    )
    ends = [
        (end, -len(word))
        for end in range(min_tokens + 1, len(answer) + 1)
        for word in words
        if answer[:end][-len(word) :] == word
    ]
    end, length = min(ends, default=(0, -len(answer)))
    expected = "".join(text for text in answer[: end + length if end else None] if len(text) == 1)
    stream = stream_of(family, [letters[text] for text in answer], tuple(map("".join, words)), min_tokens)
    assert (stream.run(steps), stream.text) == (end, expected)


def test_a_special_token_that_is_spelled_as_text_ends_the_answer_as_text_does() -> None:
    word = SPELLED["byte_level"][0]
    spelled = [token for letter in word for token in encoded("byte_level", letter)]
    assert window_piece("byte_level", spelled, stop_words=(f"{word}",)) == Piece("", len(spelled))
    assert window_piece("byte_level", [*spelled, 0], stop_words=("x",)).text == word


def test_parts_of_a_special_token_and_other_special_tokens_do_not_stop() -> None:
    assert window_piece("byte_level", [0, 1], stop_words=("<", "|>", "end", "<|user|>")) == Piece("", 0)


@pytest.mark.parametrize("family", FAMILIES)
@examples
@given(data=st.data())
def test_the_text_of_an_answer_is_what_the_library_decodes(family: str, data: st.DataObject) -> None:
    """SentencePiece's decoder writes one U+FFFD for each byte of a broken run,
    even for its whole characters: no stream could.
    """
    checkpoint = CHECKPOINTS[family]
    text = data.draw(texts) if family == "sentence_piece" else None
    tokens = (
        checkpoint.tokenizer.encode(text, add_special_tokens=False).ids
        if text is not None
        else data.draw(answers(family))
    )
    if family == "byte_level":
        tokens = [token for token in tokens if DETOKENIZERS[family]._bytes.table[token] != WALL]
    assert whole(family, tokens) == checkpoint.tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("family", FAMILIES)
@examples
@given(runs=st.lists(texts, min_size=1, max_size=5))
def test_special_tokens_between_texts_print_nothing(family: str, runs: list[str]) -> None:
    assume(runs[0])  # a leading space behind more special tokens than MAX_LEAD_TOKENS stays
    checkpoint = CHECKPOINTS[family]
    tokens = [
        token
        for text in runs
        for token in [*checkpoint.tokenizer.encode(text, add_special_tokens=False).ids, 0, 1]
    ]
    assert whole(family, tokens) == checkpoint.tokenizer.decode(tokens, skip_special_tokens=True)


def whole(family: str, tokens: list[int]) -> str:
    return window_piece(family, tokens, finish=Finish.STOP).text


def window_piece(family: str, tokens: list[int], **fields: object) -> Piece:
    return DETOKENIZERS[family].piece(TokenWindow(1, np.array(tokens, np.int32), **fields))  # type: ignore[arg-type]


def encoded(family: str, text: str) -> list[int]:
    return CHECKPOINTS[family].tokenizer.encode(text, add_special_tokens=False).ids


def byte_tokens(data: bytes) -> list[int]:
    return [3 + byte for byte in data]  # of the SentencePiece vocabulary


@examples
@given(steps=steps, num_specials=st.integers(0, 40))
@example(steps=[(4, 4, 0)] * 20, num_specials=39)
def test_a_long_run_of_special_tokens_hides_nothing_from_a_short_window(
    steps: list[tuple[int, int, int]], num_specials: int
) -> None:
    """Specials have no text but count as context: a window must not need to look beyond them."""
    tokens = [
        *encoded("sentence_piece", "hello stop"),
        *[2] * num_specials,
        *encoded("sentence_piece", " world stop"),
    ]
    stream = stream_of("sentence_piece", tokens, ("stop world", "world stop"))
    assert stream.run(steps) == len(tokens)
    assert stream.text == "hello stop  "


def test_a_window_does_not_take_the_answers_dropped_space_for_the_start_of_a_stop_word() -> None:
    """Cut off from the special token before it, " hello" looks as if its space were text: what is
    acknowledged is not searched.
    """
    tokens = [2, *encoded("sentence_piece", "hello"), *byte_tokens(b"x" * 20)]
    stream = stream_of("sentence_piece", tokens, (" hello",))
    stream.send(1 + context_tokens((" hello",)), 0)
    stream.acknowledge(1)
    assert stream.send(len(tokens), 0) == Piece("x" * 7)


def test_half_a_character_waits_for_its_other_half() -> None:
    tokens = byte_tokens("a€".encode())
    stream = stream_of("sentence_piece", tokens)
    assert [stream.send(count, 0).text for count in range(1, 5)] == ["a", "", "", "€"]


def test_half_a_character_at_the_end_is_replaced() -> None:
    assert whole("sentence_piece", byte_tokens("a€".encode()[:-1])) == "a\ufffd"


def test_every_invalid_byte_is_replaced_even_the_one_that_walls_are_made_of() -> None:
    assert whole("sentence_piece", byte_tokens(b"a\xff\xc0b")) == "a\ufffd\ufffdb"
    assert whole("byte_level", [CHECKPOINTS["byte_level"].tokenizer.get_vocab()["ÿ"]]) == "\ufffd"


def test_the_start_of_a_stop_word_is_held_back_until_it_is_none() -> None:
    stream = stream_of("sentence_piece", byte_tokens(b"a stable"), ("stop",))
    assert [stream.send(count, 0).text for count in range(1, 9)] == ["a", " ", "", "", "sta", "b", "l", "e"]


def test_what_was_held_back_goes_out_with_the_end() -> None:
    tokens = byte_tokens(b"sto")
    stream = stream_of("sentence_piece", tokens, ("stop",))
    assert stream.send(3, 0).text == ""
    assert stream.send(3, 0, Finish.DEADLINE).text == "sto"


def test_a_stop_word_within_min_tokens_is_text_and_the_next_one_stops() -> None:
    tokens = byte_tokens(b"stop stop stop")
    assert window_piece("sentence_piece", tokens, stop_words=("stop",), min_tokens=4) == Piece("stop ", 9)


def test_a_stop_word_that_begins_within_min_tokens_and_ends_behind_them_stops() -> None:
    assert window_piece(
        "sentence_piece", byte_tokens(b"a stop"), stop_words=("stop",), min_tokens=5
    ) == Piece("a ", 6)


def test_of_two_stop_words_the_one_complete_first_counts() -> None:
    assert window_piece("sentence_piece", byte_tokens(b"abcd"), stop_words=("abcd", "bc")) == Piece("a", 3)


def test_of_two_stop_words_complete_together_the_longer_one_is_cut() -> None:
    assert window_piece("sentence_piece", byte_tokens(b"xabc"), stop_words=("bc", "abc")) == Piece("x", 4)


def test_nothing_is_printed_behind_a_stop_word_that_ends_in_what_was_sent() -> None:
    tokens = byte_tokens(b"a stop, and more")
    assert window_piece("sentence_piece", tokens, num_sent=8, stop_words=("stop",)) == Piece("", 6)


def test_text_before_a_stop_word_is_not_sent_again_though_it_might_have_begun_another() -> None:
    assert window_piece(
        "sentence_piece", byte_tokens(b"xabz"), num_sent=3, stop_words=("ab", "xabc")
    ) == Piece("", 3)


def test_a_silent_window_only_looks_for_stop_words() -> None:
    assert window_piece("sentence_piece", byte_tokens(b"a stop"), stop_words=("stop",), silent=True) == Piece(
        "", 6
    )


def test_the_end_of_an_answer_that_is_not_streamed_has_the_whole_text() -> None:
    stopped = window_piece(
        "sentence_piece", byte_tokens(b"hello stop"), stop_words=("stop",), finish=Finish.STOP
    )
    assert stopped == Piece("hello ", 10)


def test_an_end_token_prints_nothing() -> None:
    assert whole("byte_level", [*encoded("byte_level", "the end"), 0]) == "the end"


def test_the_answers_leading_space_is_dropped_for_sentence_piece_only() -> None:
    assert whole("sentence_piece", encoded("sentence_piece", "hello world")) == "hello world"
    assert whole("byte_level", encoded("byte_level", " hello world")) == " hello world"


def test_echo_goes_before_the_answer_with_the_space_between_them() -> None:
    tokens = encoded("sentence_piece", "world")
    assert window_piece("sentence_piece", tokens, echo="hello").text == "hello world"
    assert window_piece("byte_level", encoded("byte_level", " world"), echo="hello").text == "hello world"


def test_a_window_that_ends_before_what_was_sent_prints_nothing() -> None:
    """The scheduler has cut the answer at a stop word: later tokens were on their way already."""
    window = {"start": 20, "num_sent": 9, "stop_words": ("stop",), "finish": Finish.STOP}
    assert window_piece("sentence_piece", [], **window) == Piece("")


def test_a_probe_prints_nothing() -> None:
    assert window_piece("byte_level", [], start=0) == Piece("")


def test_a_response_costs_so_many_calls_however_long_its_window_is() -> None:
    def num_calls(num_tokens: int) -> int:
        tokens = np.array(encoded("byte_level", "The quick brown fox jumps. " * 20)[:num_tokens], np.int32)
        window = TokenWindow(1, tokens, start=40, num_sent=60, stop_words=("\n\n", "User:"))
        detokenizer, calls = DETOKENIZERS["byte_level"], list[str]()
        detokenizer.piece(window)  # what it keeps of stop words is made now
        sys.setprofile(lambda _, event, __: calls.append(event))
        try:
            detokenizer.piece(window)
        finally:
            sys.setprofile(None)
        return len(calls)

    assert num_calls(23) == num_calls(92)


def test_a_decoder_of_another_family_is_refused_by_name() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.CTC()
    other = replace(CHECKPOINTS["byte_level"], tokenizer=tokenizer)
    with pytest.raises(CheckpointError, match="CTC"):
        Detokenizer(other)
