"""Turns token windows into text. Keeps no state between two windows of an answer.

Owns no stream: the scheduler model sets how many tokens the client has the text of (`num_sent`), the
detokenizer model sends the text. The certain text of n output tokens is their text without an incomplete
character at the end, without an end that may become a stop word, and without everything from a stop word on.
A window gives the certain text of all its tokens without the certain text of the first `num_sent`. When the
answer has ended, all its text up to a stop word is certain.
"""

from __future__ import annotations

from bisect import bisect_left
from codecs import utf_8_decode
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from python_backends.nouns.request import Finish, LogProbs, TokenWindow
from python_backends.text.checkpoint import Checkpoint
from python_backends.text.detokenize.token_bytes import MAX_LEAD_TOKENS, WALL, token_bytes


@dataclass(frozen=True, slots=True)
class Piece:
    text: str  # new text, which the client appends to the text before
    stopped_at: int = 0  # output tokens up to and including the end of a stop word; 0: no stop word


def context_tokens(stop_words: tuple[str, ...]) -> int:
    """Returns how many tokens before the first unacknowledged one a window must include, unless it starts at
    the answer's first token.

    Every token has at least one byte (see WALL), so these tokens contain the longest stop word or an
    incomplete character, even after a leading space.
    """
    return max(map(len, _as_bytes(stop_words)), default=0) + MAX_LEAD_TOKENS


class Detokenizer:
    """Turns windows into text. The only state is the table of the vocabulary, which never changes: windows of
    any answer may come in any order and from any thread.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._bytes = token_bytes(checkpoint)

    def piece(self, window: TokenWindow) -> Piece:
        """Returns the new text of `window`, which starts at 0 or at least `context_tokens` before the first
        unacknowledged token.
        """
        table, ids = self._bytes.table, window.tokens.tolist()
        tokens = [table[token] for token in ids]
        space = "" if window.start or window.continues_text else self._bytes.begin(ids, tokens)
        data = b"".join(tokens)
        ends = [0, *accumulate(map(len, tokens))]  # the window's first i tokens end at byte ends[i]
        stop = _first_stop(data, ends, window) if window.stop_words else None
        stopped_at = window.start + stop.num_tokens if stop else 0
        if window.silent:
            return Piece("", stopped_at)
        echo = window.echo + space if window.echo else ""
        return Piece(echo + _new_text(data, ends, window, stop), stopped_at)


def num_new_tokens(window: TokenWindow, piece: Piece) -> int:
    """Returns how many tokens of `window` are new, up to and including the one that completed a stop word.

    Their text may be in a later window, when it is certain. A response counts its own tokens, as in
    TensorRT-LLM's ensemble.
    """
    reached = window.start + len(window.tokens)
    return max(0, min(reached, piece.stopped_at or reached) - window.num_sent)


def new_log_probs(window: TokenWindow, piece: Piece) -> LogProbs | None:
    """Returns the log-probabilities of the tokens that `num_new_tokens` counts; None if the request did not
    ask for them.
    """
    if window.log_probs is None or not piece.stopped_at:
        return window.log_probs
    return window.log_probs.first(min(num_new_tokens(window, piece), len(window.log_probs.chosen)))


@dataclass(frozen=True, slots=True)
class _Stop:
    """Where in a window the first stop word is."""

    start: int  # bytes before it
    num_tokens: int  # of the window, up to and including the one that completes it


def _new_text(data: bytes, ends: list[int], window: TokenWindow, stop: _Stop | None) -> str:
    num_sent = max(0, min(window.num_sent - window.start, len(ends) - 1))
    words = _as_bytes(window.stop_words)
    begin = _certain(data, ends[num_sent], words)
    if stop:
        return _text(data[begin : stop.start]) if stop.num_tokens > num_sent else ""
    end = _certain(data, len(data), words) if window.finish == Finish.RUNNING else len(data)
    return _text(data[begin:end])


def _first_stop(data: bytes, ends: list[int], window: TokenWindow) -> _Stop | None:
    """Returns the stop word that is complete first, after `min_tokens` and after the acknowledged tokens
    (which contain none).

    Of two that end at the same byte, returns the longer one.
    """
    acknowledged = window.start + context_tokens(window.stop_words) - 1 if window.start else 0
    passed = max(window.min_tokens, acknowledged) - window.start
    if passed >= len(ends) - 1:
        return None
    words = _as_bytes(window.stop_words)
    starts = [(data.find(word, max(0, ends[max(0, passed)] - len(word) + 1)), len(word)) for word in words]
    found = [(start + length, start) for start, length in starts if start >= 0]
    if not found:
        return None
    end, start = min(found)
    return _Stop(start, bisect_left(ends, end))


def _certain(data: bytes, end: int, words: tuple[bytes, ...]) -> int:
    """Returns how many of the first `end` bytes stay the same text, whatever bytes follow."""
    tail = data[max(0, end - 3) : end]
    whole = end - len(tail) + utf_8_decode(tail, "replace", False)[1]
    return min([whole, *(_open_stop(data, end, word) for word in words)])


def _open_stop(data: bytes, end: int, word: bytes) -> int:
    """Returns where the longest tail of data[:end] starts that `word` begins with; `end` if there is none."""
    start = data.find(word[0], max(0, end - len(word) + 1), end)
    while start >= 0 and not word.startswith(data[start:end]):
        start = data.find(word[0], start + 1, end)
    return start if start >= 0 else end


def _text(data: bytes) -> str:
    if WALL not in data:
        return data.decode("utf-8", "replace")
    return "".join(part.decode("utf-8", "replace") for part in data.split(WALL))


@lru_cache(maxsize=4096)
def _as_bytes(stop_words: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in stop_words)
