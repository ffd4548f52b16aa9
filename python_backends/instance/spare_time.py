"""The time between steps of requests, and who uses it: work that may wait, such as training.

Prompts and decodes go first. Where sequences decode, a step and the work before it take no longer than the
time per output token that the settings allow. Where there is nothing to compute, a new request waits for the
work at most as long as they allow. Owned by the loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from python_backends.nouns.load import Load
from python_backends.nouns.step import StepPlan
from python_backends.scheduling.step_time import StepTime

# of the time per output token: what a step and the work before it may be expected to take. What takes longer
# is caught up by later steps, so the time per output token of an answer is within what is allowed
GOAL = 0.93
# that a request waits at most for work when the server was idle: a quarter of the time per output token that
# servers allow by default
IDLE_S = 0.025
MOST_LATE_S = 0.5  # that is caught up: what takes longer was interrupted, or there was no work meanwhile


class SpareWork:
    """Work that uses spare time. One kind of it says what it does in `has_work` and `work`, and what else it
    needs: docs/how-to/spare_work.md.

    Its limits: it is called by the loop's thread alone, between two steps, and nothing interrupts it. So
    `work` does no more than it can foresee to take `slack_s`: with a step, GOAL of the time per output token
    at most, less the step; without one, about IDLE_S, for which a new request may wait. There is none before
    a step with prompts. What takes longer makes tokens late. KV blocks have one borrower
    (`BlockPool.borrow`): training.
    """

    @property
    def has_work(self) -> bool:
        """Asked several times a step."""
        raise NotImplementedError

    @property
    def patience_s(self) -> float:
        """How long an idle loop may wait for messages before it calls `work`, which has something to do."""
        return 0.0

    def work(self, slack_s: float, plan: StepPlan | None) -> bool:
        """Works for at most `slack_s` before the step of `plan`. Where there is no step (None), it does some
        work in any case. Whether it did some.
        """
        raise NotImplementedError

    def report(self, load: Load) -> Load:
        """`load`, with what was done since the last one."""
        return load

    def close(self) -> None:
        """No call comes any more."""


class SpareTime:
    """`works` in their order: one has what those before it leave. `tpot_s`: what a step and the work before
    it may take while sequences decode; `idle_s`: how long a request may wait for work when none decode.
    """

    def __init__(
        self,
        works: Sequence[SpareWork] = (),
        tpot_s: float = math.inf,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._works, self.tpot_s, self._idle_s, self._clock = works, tpot_s, idle_s, clock
        # by how much the sequences that decode have their tokens later than allowed
        self._late_s = 0.0
        self._began_s: float | None = None  # the latest step, with the work before it, if sequences decode

    @property
    def has_work(self) -> bool:
        return bool(self._works) and any(each.has_work for each in self._works)

    @property
    def patience_s(self) -> float:
        """How long an idle loop may wait for messages while there is work."""
        return min(each.patience_s for each in self._works if each.has_work)

    def use(self, plan: StepPlan | None, times: StepTime, is_waited_for: bool) -> bool:
        """Works before the step of `plan`, which is None where there is nothing to compute, for as long as
        those who wait for tokens do not notice. `is_waited_for`: a request waits for a slot or for memory,
        which it gets sooner without work. Whether something was done.
        """
        self._catch_up(plan)
        slack_s = 0.0 if plan is not None and is_waited_for else self._slack_s(plan, times)
        began_s, has_worked = self._clock(), False
        for each in self._works:
            if each.has_work:
                has_worked |= each.work(slack_s, plan)
                slack_s = max(0.0, slack_s - (self._clock() - began_s))
                began_s = self._clock()
        return has_worked

    def report(self, load: Load) -> Load:
        for each in self._works:
            load = each.report(load)
        return load

    def close(self) -> None:
        for each in self._works:
            each.close()

    def _catch_up(self, plan: StepPlan | None) -> None:
        """A step begins, with the work before it. One with prompts may have made others late."""
        now_s = self._clock()
        if plan is None:
            self._late_s = 0.0
        elif self._began_s is not None:
            late_s = self._late_s + now_s - self._began_s - GOAL * self.tpot_s
            self._late_s = min(MOST_LATE_S, max(0.0, late_s))
        self._began_s = now_s if plan is not None and plan.num_decodes else None

    def _slack_s(self, plan: StepPlan | None, times: StepTime) -> float:
        """There is none before a step with prompts, whose first tokens are waited for."""
        if plan is None:
            return self._idle_s
        if len(plan.tokens):
            return 0.0
        return max(0.0, GOAL * self.tpot_s - times.expected_s(plan) - self._late_s)
