"""Turns token windows into text. Keeps no state between two windows of an answer.

Owns no stream: the scheduler model sets how many tokens the client has the text of (`num_sent`), the
detokenizer model sends the text. The certain text of n output tokens is their text without an incomplete
character at the end, without an end that may become a stop word, and without everything from a stop word on.
A window gives the certain text of all its tokens without the certain text of the first `num_sent`. When the
answer has ended, all its text up to a stop word is certain.
"""

from __future__ import annotations

from codecs import utf_8_decode
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from python_backends.nouns.request import Finish, LogProbs, TokenWindow
from python_backends.text.checkpoint import Checkpoint, as_checkpoint_error
from python_backends.text.detokenize.stop_words import Stop, StopWords, Word, Written
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
    return max((len(word.encode()) for word in stop_words), default=0) + MAX_LEAD_TOKENS


class Detokenizer:
    """Turns windows into text. The only state is the table of the vocabulary, which never changes: windows of
    any answer may come in any order and from any thread.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        with as_checkpoint_error(checkpoint.directory):
            self._bytes = token_bytes(checkpoint)
            self._stop_words = StopWords(checkpoint)

    def piece(self, window: TokenWindow) -> Piece:
        """Returns the new text of `window`, which starts at 0 or at least `context_tokens` before the first
        unacknowledged token.
        """
        table, ids = self._bytes.table, window.tokens.tolist()
        tokens = [table[token] for token in ids]
        space = "" if window.start or window.continues_text else self._bytes.begin(ids, tokens)
        data = b"".join(tokens)
        written = Written(ids, data, [0, *accumulate(map(len, tokens))])
        words = self._stop_words.read(window.stop_words)
        stop = written.first_stop(words, _num_passed(window)) if words else None
        stopped_at = window.start + stop.num_tokens if stop else 0
        if window.silent:
            return Piece("", stopped_at)
        echo = window.echo + space if window.echo else ""
        return Piece(echo + _new_text(written, window, words, stop), stopped_at)


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


def cum_log_prob(window: TokenWindow, piece: Piece, new: LogProbs) -> float:
    """Returns the sum over the answer's tokens up to and including the one that completed a stop word, which
    may be in an earlier window. `new`: what `new_log_probs` returns.
    """
    sent = window.sent_log_probs
    if sent is None:
        sent = new.chosen[:0]
    elif piece.stopped_at:
        sent = sent[: piece.stopped_at - window.start]
    return window.cum_log_prob + float(sent.sum(dtype=np.float64) + new.chosen.sum(dtype=np.float64))


def _num_passed(window: TokenWindow) -> int:
    """Returns how many tokens of the window can't complete a stop word: those before `min_tokens`, and those
    that are acknowledged, which contain none.
    """
    acknowledged = window.start + context_tokens(window.stop_words) - 1 if window.start else 0
    return max(window.min_tokens, acknowledged) - window.start


def _new_text(written: Written, window: TokenWindow, words: tuple[Word, ...], stop: Stop | None) -> str:
    data, ends = written.data, written.ends
    num_sent = max(0, min(window.num_sent - window.start, len(ends) - 1))
    begin = _certain(data, ends[num_sent], words)
    if stop:
        return _text(data[begin : stop.start]) if stop.num_tokens > num_sent else ""
    end = _certain(data, len(data), words) if window.finish == Finish.RUNNING else len(data)
    return _text(data[begin:end])


def _certain(data: bytes, end: int, words: tuple[Word, ...]) -> int:
    """Returns how many of the first `end` bytes stay the same text, whatever bytes follow."""
    tail = data[max(0, end - 3) : end]
    whole = end - len(tail) + utf_8_decode(tail, "replace", False)[1]
    return min([whole, *(_open_stop(data, end, word.data) for word in words)])


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
