"""Tokens wait in the instance for those of the next steps, as long as the
scheduler model wants and nobody waits for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from python_backends.instance.held_tokens import HeldTokens
from python_backends.nouns.messages import Flush, FromInstance, Load
from python_backends.nouns.request import Finish
from python_backends.nouns.step import Started, Tokens


def tokens(*indices: int, ends: bool = False) -> Tokens:
    """Of one step: token number `indices[i]` of the answer to request i."""
    count = len(indices)
    finishes = np.full(count, Finish.LENGTH if ends else Finish.RUNNING, np.uint8)
    zeros = np.zeros(count, np.int32)
    return Tokens(np.arange(count), zeros, np.array(indices, np.int32), zeros, finishes)


class Hold:
    """`HeldTokens` with a clock that stands at the time of the latest call."""

    def __init__(self, interval_s: float = 0.0) -> None:
        self._now_s = 0.0
        self.held = HeldTokens(lambda: self._now_s)
        self.held.interval_s = interval_s

    def put(self, messages: Sequence[FromInstance], now_s: float) -> list[FromInstance]:
        self._now_s = now_s
        return self.held.put(messages)

    def due(self, next_s: float) -> list[FromInstance]:
        return self.held.due(next_s)


def test_nothing_is_held_unless_it_is_asked_for() -> None:
    held = Hold()
    steps = [tokens(3, 4), tokens(4, 5)]
    assert held.put(steps, now_s=1.0) == steps
    assert held.due(math.inf) == []


def test_tokens_wait_until_the_next_ones_would_come_too_late() -> None:
    held = Hold(0.040)
    steps = [tokens(3 + number, 4 + number) for number in range(3)]
    for number, step in enumerate(steps):
        assert held.put([step], now_s=1.0 + 0.015 * number) == []
        assert number == 2 or held.due(next_s=1.0 + 0.015 * (number + 1)) == []
    assert held.due(next_s=1.045) == [*steps, Flush()]
    assert held.due(next_s=2.0) == [], "nothing waits"


def test_a_first_token_and_a_last_one_go_out_at_once_and_take_along_what_was_held() -> None:
    for urgent in (tokens(3, 0), tokens(5, 6, ends=True)):
        held, before = Hold(0.040), tokens(2, 3)
        assert held.put([before], now_s=1.0) == []
        assert held.put([urgent], now_s=1.010) == [before, urgent]
        assert held.due(next_s=1.050) == [Flush()], "those that were not urgent wait for it, there as here"


def test_what_is_no_token_never_waits_and_keeps_its_place() -> None:
    held, step = Hold(0.040), tokens(5)
    assert held.put([step], now_s=1.0) == []
    assert held.put([Started(9, 0, 0)], now_s=1.001) == [step, Started(9, 0, 0)]
    assert held.put([Load()], now_s=1.002) == [Load()]


def test_when_nothing_more_is_expected_all_goes_out() -> None:
    held, step = Hold(0.040), tokens(5)
    held.put([step], now_s=1.0)
    assert held.due(next_s=math.inf) == [step, Flush()]


def test_who_is_told_to_hold_nothing_lets_go_of_what_it_held() -> None:
    held, steps = Hold(0.040), [tokens(5), tokens(6)]
    held.put(steps[:1], now_s=1.0)
    held.held.interval_s = 0.0
    assert held.put(steps[1:], now_s=1.010) == steps
