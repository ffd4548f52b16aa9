"""How many tokens come late, by cause (docs/token_way.md). Owned by the loop.

A token is late if it comes more than `tpot_s` after the one before it. Each row that decodes in a step had
its last token in the step before, so one comparison a step finds the late ones.
"""

from __future__ import annotations

import math

from python_backends.nouns.load import LATE_CAUSES
from python_backends.nouns.step import StepPlan
from python_backends.scheduling.step_time import StepTime


class LateTokens:
    """Owns the counts since the last `take`. Times are seconds of one monotonic clock."""

    def __init__(self, times: StepTime, tpot_s: float) -> None:
        """`tpot_s`: the time per output token that readers accept."""
        self._times, self._tpot_s = times, tpot_s
        self._counts = dict.fromkeys(LATE_CAUSES, 0)
        self._last_s = math.inf  # when the tokens of the step before were read; inf: there was none
        self._worked_s = 0.0  # since then, in spare time

    def idle(self) -> None:
        """Nothing is to be computed: no token waits for the next step."""
        self._last_s = math.inf

    def worked(self, seconds: float) -> None:
        """Spare time was used before a step."""
        self._worked_s += seconds

    def evicted(self, num_requests: int) -> None:
        """The next token of each comes after all tokens before it are computed again."""
        self._counts["evicted"] += num_requests

    def collected(self, plan: StepPlan, now_s: float, took_s: float) -> None:
        """The tokens of `plan`, a step that took `took_s`, were read; `times` has not learned from it yet."""
        waited_s, self._last_s = now_s - self._last_s, now_s
        if waited_s > self._tpot_s and plan.num_decodes:
            self._counts[self._cause(plan, waited_s, took_s)] += plan.num_decodes
        self._worked_s = 0.0

    def take(self) -> tuple[int, ...]:
        """In the order of LATE_CAUSES; empty if no token was late since the last call."""
        counts = tuple(self._counts.values())
        if not any(counts):
            return ()
        self._counts = dict.fromkeys(LATE_CAUSES, 0)
        return counts

    def _cause(self, plan: StepPlan, waited_s: float, took_s: float) -> str:
        """The longest part of the time besides the decode rows; these, if they alone take too long."""
        rows, kv_tokens, *prompts = self._times.loads(plan)
        decode_s = self._times.seconds(rows, kv_tokens)
        if decode_s > self._tpot_s:
            return "decode"
        prompts_s = self._times.seconds(rows, kv_tokens, *prompts) - decode_s
        parts_s = {
            "prompts": prompts_s,
            "spare_time": self._worked_s,
            "slow_step": took_s - decode_s - prompts_s,
            "host": waited_s - took_s - self._worked_s,
        }
        return max(parts_s, key=parts_s.__getitem__)
