"""What can be known of a request before its prompt is computed: numbers from its text."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_prompts.prompts import Prompt
from python_backends.nouns.request import Floats

WORDS = re.compile(r"[^\W\d_]+|\d|[^\w\s]")
MOST_WORDS = 64  # of the last message, the first and the last half of them
WIDTH = 1024


def hashed(prompts: Sequence[Prompt], width: int = WIDTH) -> Floats:
    """[prompts, width] words and pairs of words of the last message and of the system message, hashed: how
    many, in logarithms; the last two are the logarithms of the message's length and of its turns.
    """
    rows = np.zeros((len(prompts), width), np.float32)
    for row, prompt in zip(rows, prompts, strict=True):
        for place, count in hashed_words(prompt, width).items():
            row[place] = count
    return rows


def hashed_words(prompt: Prompt, width: int = WIDTH) -> dict[int, float]:
    """The numbers that are not 0."""
    counts: dict[int, float] = {}
    for message in prompt.messages:
        if message is prompt.messages[-1] or message["role"] == "system":
            for word in _words_and_pairs(message["content"], message["role"][0]):
                place = zlib.crc32(word.encode()) % (width - 2)
                counts[place] = counts.get(place, 0.0) + 1.0
    found = {place: float(np.log1p(count)) for place, count in counts.items()}
    found[width - 2] = float(np.log1p(len(prompt.text)))
    found[width - 1] = float(len(prompt.messages))
    return found


def _words_and_pairs(text: str, role: str) -> list[str]:
    words = WORDS.findall(text.lower())
    if len(words) > MOST_WORDS:
        words = words[: MOST_WORDS // 2] + words[-MOST_WORDS // 2 :]
    pairs = [f"{role} {a} {b}" for a, b in zip(["^", *words], [*words, "$"], strict=True)]
    return [f"{role} {word}" for word in words] + pairs


@cache
def encoder() -> Any:
    from python_backends.prediction.encoder import PACKAGED, CachedEncoder, SentenceEncoder

    return CachedEncoder(SentenceEncoder(PACKAGED), max_texts=10_000)


def sentences(prompts: Sequence[Prompt]) -> tuple[Floats, Floats]:
    """([prompts, 384], [prompts, 384]) of the instruction and of the input, as the server divides them."""
    from python_backends.text.door.subject import MAX_READ_CHARS

    pairs = [instruction_and_input(prompt) for prompt in prompts]
    return tuple(
        np.concatenate(
            [
                encoder().encode([pair[which][:MAX_READ_CHARS] for pair in pairs[at : at + 32]])
                for at in range(0, len(pairs), 32)
            ]
        )
        for which in (0, 1)
    )


def instruction_and_input(prompt: Prompt) -> tuple[str, str]:
    from python_backends.text.door.subject import of_text

    system = [message["content"] for message in prompt.messages if message["role"] == "system"]
    return (system[0], prompt.text) if system else of_text(prompt.text)


def nearest(known: Floats, asked: Floats, count: int) -> NDArray[np.int64]:
    """[asked, count] the places of the most similar rows (cosine)."""
    unlike = -(_unit(asked) @ _unit(known).T)
    places: NDArray[np.int64] = np.argpartition(unlike, count - 1, axis=1)[:, :count]
    return places


def _unit(rows: Floats) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Floats = (rows / np.maximum(lengths, 1e-9)).astype(np.float32)
    return unit
