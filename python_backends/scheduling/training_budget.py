"""How large a piece of training is, so that it ends in the time that serving leaves: the most tokens for
which the expected time is within it (FlexLLM, NSDI 2026). Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from python_backends.nouns.training import Loads
from python_backends.scheduling.piece_time import PieceTime

LEAST = 16  # tokens of a piece, if its pack has as many
SMALL = (*range(256, 64, -32), 64, 48, 32, LEAST)
LARGE = tuple(quarter << power for power in range(12, 5, -1) for quarter in (8, 7, 6, 5))  # 32768 to 320
# a piece has at most so many times the tokens of the largest one so far; LEAST until a time is known
GROWTH = 2


def most_tokens(seconds: float, times: PieceTime, left: int, loads: Callable[[int], Loads], most: int) -> int:
    """How many of `left` tokens a piece has, at most `most`, that takes at most `seconds`; 0: not even the
    least piece. `loads`: of a piece with so many tokens. There are few sizes: for every new one the libraries
    of a CPU generate code.
    """
    known = max(LEAST, GROWTH * times.most_tokens) if times.is_learned else LEAST
    largest = min(left, most)
    sizes: list[int] = [largest, *(size for size in (*LARGE, *SMALL) if size < largest)]
    for tokens in sizes:
        is_known = tokens <= known or tokens == sizes[-1]
        if is_known and times.seconds(loads(tokens)) <= seconds:
            return tokens
    return 0
