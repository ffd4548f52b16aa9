"""Guides and answers for tests: a vocabulary of bytes and some words, as large as that of the tiny models,
and tokens drawn under a mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from python_backends.guides.grammars import grammar_of
from python_backends.guides.guides import Guides
from python_backends.guides.matcher import Matcher, num_words
from python_backends.guides.prepared import Followed
from python_backends.guides.vocabulary import Vocabulary

WORDS = (
    b'{"',
    b'": ',
    b'", "',
    b'"}',
    b"true",
    b"null",
    b"name",
    b"}\n",
    b"  ",
    b"</tool>",
    b"<tool>",
    b"12",
)
TEXTS = (*(bytes([byte]) for byte in range(256)), *WORDS)
VOCABULARY = 512
END, STOP = len(TEXTS), len(TEXTS) + 1  # special tokens; only the first ends an answer by itself
UNUSED = tuple(f"<unused {token}>".encode() for token in range(STOP + 1, VOCABULARY))
TOKENS = (*TEXTS, b"<end>", b"<stop>", *UNUSED)


def vocabulary() -> Vocabulary:
    return Vocabulary(TOKENS, range(END, VOCABULARY), (END,), lambda text: list(text.encode()))


def guides() -> Guides:
    return Guides(vocabulary)


def matcher(kind: str, guide: str, begun: bytes = b"", stop_ids: Sequence[int] = (END,)) -> Matcher:
    return guides().matcher(Followed(grammar_of(kind, guide), list(begun), tuple(stop_ids)))


def text_of(tokens: Sequence[int]) -> bytes:
    """Of an answer, without what ends it."""
    return b"".join(TEXTS[token] for token in tokens if token < END)


def allowed(found: Matcher) -> list[int]:
    words = np.zeros(num_words(len(TOKENS)), np.int32)
    found.fill(words)
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()


def drawn(found: Matcher, seed: int, most: int = 400) -> tuple[bytes, bool]:
    """A text of which each token is drawn among those that may come, ends preferred; whether it is whole."""
    random, text = np.random.default_rng(seed), b""
    for _ in range(most):
        may = allowed(found)
        if END in may:
            return text, True
        token = int(random.choice(may))
        assert found.take([token])
        text += TOKENS[token]
    return text, False
