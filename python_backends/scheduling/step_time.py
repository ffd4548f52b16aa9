"""How long a step will take: a constant for the decodes and so much for every prompt token, learned while serving.

Owned by the instance loop, which plans the next step just before the running one ends: not so early that a request that comes in
the meantime misses it, not so late that the engine waits.
"""

from __future__ import annotations

from python_backends.step import StepPlan

SHARE = 0.2  # of a new measurement in the average


class StepTime:
    def __init__(self) -> None:
        self._decode_s = 0.0
        self._prefill_token_s = 0.0

    def expected_s(self, plan: StepPlan) -> float:
        """0 before anything like it has been seen."""
        return self._decode_s + len(plan.tokens) * self._prefill_token_s

    def observe(self, plan: StepPlan, seconds: float) -> None:
        if not len(plan.tokens):
            self._decode_s += (seconds - self._decode_s) * (SHARE if self._decode_s else 1.0)
            return
        token_s = max(0.0, seconds - self._decode_s) / len(plan.tokens)
        self._prefill_token_s += (token_s - self._prefill_token_s) * (SHARE if self._prefill_token_s else 1.0)
