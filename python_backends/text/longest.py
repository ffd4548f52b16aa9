"""One regular expression for many words: at each place it finds the longest word that begins there.

The expression is a tree of the words' common beginnings, because some vocabularies have thousands of special
tokens. Words may be of any length: only branches are nested, and only MAX_NESTED deep. Called by the door and
by the detokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

MAX_NESTED = 40  # Python's module re calls itself for each nested group


def longest_of(words: Iterable[str], frame: str = "{}") -> re.Pattern[str] | None:
    """Returns `frame` with the expression in it; None without words."""
    found = sorted({word for word in words if word})
    return re.compile(frame.format(_branches(found, MAX_NESTED)), re.DOTALL) if found else None


def _branches(words: Sequence[str], nested: int) -> str:
    """Returns the expression of words that are different and sorted."""
    common = _common(words[0], words[-1])  # because they are sorted, all others begin so, too
    ends = [word[len(common) :] for word in words]
    longer = ends[1:] if not ends[0] else ends
    if not longer:
        return re.escape(common)
    if nested:
        inner = [_branches(list(group), nested - 1) for _, group in groupby(longer, lambda end: end[0])]
    else:
        inner = [re.escape(end) for end in sorted(longer, key=len, reverse=True)]
    return f"{re.escape(common)}(?:{'|'.join(inner)}){'' if ends[0] else '?'}"


def _common(first: str, last: str) -> str:
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((i for i, (a, b) in pairs if a != b), min(len(first), len(last)))]
