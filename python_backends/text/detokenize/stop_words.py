"""Finds stop words in the bytes of an answer's tokens.

A special token prints nothing: among the bytes it is a wall (`token_bytes`). A stop word that contains the
spelling of special tokens is looked for twice: as text, and with these tokens in place of their spelling.
Owned by the detokenizer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from python_backends.text.checkpoint import Checkpoint
from python_backends.text.detokenize.token_bytes import WALL
from python_backends.text.longest import longest_of


@dataclass(frozen=True, slots=True)
class Word:
    """One way to write a stop word."""

    data: bytes  # a wall for each special token
    special: tuple[int, ...] = ()  # the ids of the special tokens, in order


@dataclass(frozen=True, slots=True)
class Stop:
    """Where in a window the first stop word is."""

    start: int  # bytes before it
    num_tokens: int  # of the window, up to and including the one that completes it


@dataclass(frozen=True, slots=True)
class Written:
    """The tokens of a window and their bytes."""

    ids: Sequence[int]
    data: bytes
    ends: Sequence[int]  # the first i tokens end at byte ends[i]

    def first_stop(self, words: Sequence[Word], passed: int) -> Stop | None:
        """Returns the stop word that is complete first, after the first `passed` tokens. Of two that end at
        the same byte, returns the longer one.
        """
        if passed >= len(self.ids):
            return None
        begin = self.ends[max(0, passed)]
        places = [(self._find(word, max(0, begin - len(word.data) + 1)), len(word.data)) for word in words]
        found = [(start + length, start) for start, length in places if start >= 0]
        if not found:
            return None
        end, start = min(found)
        return Stop(start, bisect_left(self.ends, end))

    def _find(self, word: Word, start: int) -> int:
        """Returns where `word` begins, at `start` or later; -1 if it is not there."""
        found = self.data.find(word.data, start)
        while found >= 0 and word.special and self._special(found, len(word.data)) != word.special:
            found = self.data.find(word.data, found + 1)
        return found

    def _special(self, begin: int, length: int) -> tuple[int, ...]:
        """Returns the tokens that are walls among these bytes."""
        walls = [at for at in range(begin, begin + length) if self.data[at] == WALL[0]]
        return tuple(self.ids[bisect_right(self.ends, at) - 1] for at in walls)


class StopWords:
    """Reads the stop words of requests to one model."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        added = checkpoint.tokenizer.get_added_tokens_decoder().items()
        ids = {token.content: token_id for token_id, token in added}
        self._ids = {text: ids[text] for text in checkpoint.special_tokens}
        self._special = longest_of(self._ids, "({})")
        self.read = lru_cache(maxsize=4096)(self._read)

    def _read(self, words: tuple[str, ...]) -> tuple[Word, ...]:
        return tuple(way for word in words for way in self._ways(word))

    def _ways(self, word: str) -> list[Word]:
        texts = self._special.split(word) if self._special is not None else [word]  # every second is a token
        as_text = Word(word.encode())
        if len(texts) == 1:
            return [as_text]
        ids = [self._ids[token] for token in texts[1::2]]
        return [as_text, Word(WALL.join(text.encode() for text in texts[::2]), tuple(ids))]
