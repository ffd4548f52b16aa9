"""Stream table and detokenizer together: however windows fall, the
client has the whole text up to a stop word.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backends.nouns.request import Finish, Request, Sampling
from python_backends.streams.stream import Stream
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.detokenize.detokenizer import Detokenizer, context_tokens, num_new_tokens
from tests.support.server.toy_model import VOCAB_SIZE, write_toy_model


@pytest.fixture(scope="module")
def detokenizer(tmp_path_factory: pytest.TempPathFactory) -> Detokenizer:
    return Detokenizer(read_checkpoint(write_toy_model(tmp_path_factory.mktemp("toy"))))


def whole_text(detokenizer: Detokenizer, tokens: list[int], words: tuple[str, ...]) -> tuple[str, int]:
    """The text in one window, and the token with which a stop word was complete (0: none was)."""
    stream = make_stream(words, stream=False)
    for index, token in enumerate(tokens):
        stream.append(index, token, Finish.RUNNING)
    stream.end(Finish.LENGTH)
    piece = detokenizer.piece(stream.send_window(0))
    return piece.text, piece.stopped_at


def make_stream(words: tuple[str, ...], stream: bool = True) -> Stream:
    request = Request(1, np.zeros(1, np.int32), Sampling(max_tokens=1000), stop_words=words, stream=stream)
    return Stream(request, None, context_tokens(words), 0)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=60),
    st.sampled_from([(), ("e",), ("self",), ("\n\n", "re"), ("  ", "def ", "\u00e9")]),
    st.randoms(use_true_random=False),
)
def test_any_windows_and_confirmations_give_the_same_text(
    detokenizer: Detokenizer, tokens: list[int], words, random
) -> None:  # type: ignore[no-untyped-def]
    stream, text, on_the_way = make_stream(words), "", []
    fed, counted = 0, 0
    while stream.finish == Finish.RUNNING:
        for _ in range(random.randint(1, 4)):
            if fed < len(tokens):
                stream.append(fed, tokens[fed], Finish.LENGTH if fed == len(tokens) - 1 else Finish.RUNNING)
                fed += 1
        if stream.finish == Finish.RUNNING:
            window = stream.send_window(0)
            piece = detokenizer.piece(window)
            text += piece.text
            counted += num_new_tokens(window, piece)
            on_the_way.append((window.start + len(window.tokens), piece.stopped_at))
        while on_the_way and random.random() < 0.5 and stream.finish == Finish.RUNNING:
            confirm(stream, *on_the_way.pop(0))
    last = stream.send_window(0)
    piece = detokenizer.piece(last)
    whole, stopped_at = whole_text(detokenizer, tokens, words)
    assert text + piece.text == whole
    assert counted + num_new_tokens(last, piece) == (stopped_at or len(tokens)), (
        "each response counts its own tokens"
    )


def confirm(stream: Stream, num_tokens: int, stopped_at: int) -> None:
    """As the stream table takes feedback."""
    stream.num_acked = max(stream.num_acked, num_tokens)
    if stopped_at:
        stream.end(Finish.STOP, min(stopped_at, len(stream.tokens)))
