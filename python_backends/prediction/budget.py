"""How much processor time may still be spent: an allowance that grows
with time up to a limit. The clock is injected. Tested in tests/pure/prediction/test_predictor.py.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_SAVED_S = 2.0  # seconds of idle time whose budget may be spent at once


class Budget:
    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        """`share` of one processor; `clock` in seconds."""
        self._share = min(share, 1.0)
        self._clock = clock
        self._seen_s = clock()
        self._left_s = self._share * MAX_SAVED_S

    def affords(self, cost_s: float) -> bool:
        now_s = self._clock()
        self._left_s = min(self._share * MAX_SAVED_S, self._left_s + (now_s - self._seen_s) * self._share)
        self._seen_s = now_s
        return self._share > 0 and cost_s <= self._left_s

    def spend(self, cost_s: float) -> None:
        """The allowance may go below zero; it then has to grow back first."""
        self._left_s -= cost_s
