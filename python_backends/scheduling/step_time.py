"""How long a step takes: a constant, plus a time for each decode row, KV token, prefill token and prefill KV
token of it.

KV tokens are those that decode rows attend to. Each token of a chunk attends to all tokens before the chunk
and, on average, to half of the chunk: these are its prefill KV tokens, of which a chunk far into a long
prompt has many.

Learned while serving, by least squares over the latest steps. The instance loop reports every step to it and
plans the next one just before the running one ends: not too early, so that a request that comes meanwhile is
still in it, and not too late, so that the engine does not wait. The slot scheduler reads from it how long a
request will take; the simulated benchmarks take the time of their steps from it.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.step import StepPlan
from python_backends.scheduling.least_squares import NUM_FAR_BELOW, FarBelow, LeastSquares
from python_backends.scheduling.piece_time import chunk_kv_tokens

FEATURES = ("constant", "decode row", "KV token", "prefill token", "prefill KV token")
# Learning takes 0.4 ms, however many steps it is from, so it waits for a group of steps: one at first, one
# more for every GROWTH steps that were learned from, and at most BATCH.
GROWTH, BATCH = 2, 16
NUM_ERRORS = 256  # latest errors that quantiles are taken of
QUICK = 0.05  # share of the steps that may take less than `least_s`

Array = NDArray[np.float64]


class _Kind:
    """Errors of one kind of steps: those with prompts, or those without."""

    def __init__(self) -> None:
        # the QUICK quantile of measured / expected, at most 1; 0 before any step was measured
        self.quick = 0.0
        self._errors: deque[float] = deque(maxlen=NUM_ERRORS)

    def learn(self, errors: Array) -> None:
        if len(errors):
            self._errors.extend(errors.tolist())
            self.quick = min(1.0, float(np.quantile(self._errors, QUICK)))


class StepTime:
    """`coefficients` are seconds for one of each of `FEATURES`, none of them negative; `observe` and `learn`
    change them.
    """

    def __init__(self) -> None:
        self._fit = LeastSquares(len(FEATURES))
        self._far_below = FarBelow()
        # steps without prompts, and those with prompts, which have less certain times
        self._kinds = (_Kind(), _Kind())
        # loads and seconds of steps that are not yet learned from
        self._observed: list[tuple[float, ...]] = []
        self._run = -1  # run number of the latest plan
        self._first_kv_tokens = 0  # the sum of `first_starts` over its decode rows

    @property
    def coefficients(self) -> list[float]:
        return self._fit.coefficients

    @coefficients.setter
    def coefficients(self, coefficients: list[float]) -> None:
        self._fit.coefficients = coefficients

    def seconds(
        self, decode_rows: float, kv_tokens: float, prefill: float = 0, prefill_kv: float = 0
    ) -> float:
        """Of a step with this many rows that decode, tokens that these attend to, tokens of prompts, and
        tokens that each of these attends to, added up; 0 before any step was seen.
        """
        constant, row, kv, token, attended = self._fit.coefficients
        return constant + row * decode_rows + kv * kv_tokens + token * prefill + attended * prefill_kv

    def chunk_s(self, start: int, length: int) -> float:
        """Seconds that a chunk of `length` tokens, `start` tokens into its prompt, adds to a step."""
        token_s, attended_s = self.coefficients[3:]
        return float(token_s * length + attended_s * chunk_kv_tokens(start, length))

    def chunk_tokens(self, seconds: float, start: int) -> float:
        """How long a chunk may be that adds `seconds` to a step: the inverse of `chunk_s`."""
        token_s, attended_s = self.coefficients[3:]
        if math.isinf(seconds):
            return math.inf
        at_start_s = token_s + attended_s * start
        slope_s = at_start_s + math.sqrt(at_start_s**2 + 2 * attended_s * seconds)
        return 2 * seconds / slope_s if slope_s else math.inf

    def prompts_s(self, lengths: Array) -> Array:
        """[n] seconds that whole prompts of `lengths` [n] tokens add to the steps that compute them."""
        token_s, attended_s = self.coefficients[3:]
        return token_s * lengths + attended_s * lengths**2 / 2

    def loads(self, plan: StepPlan) -> tuple[int, int, int, float]:
        """The arguments of `seconds` for a step. Sums over decode rows are computed once per run."""
        rows = plan.num_decodes  # they come first
        if plan.run != self._run:
            self._run, self._first_kv_tokens = plan.run, int(plan.first_starts[:rows].sum())
        attended = 0.0
        if len(plan.tokens):
            attended = float(chunk_kv_tokens(plan.starts[rows:].astype(np.int64), plan.lengths[rows:]).sum())
        return rows, self._first_kv_tokens + rows * (plan.step_in_run + 1), len(plan.tokens), attended

    def expected_s(self, plan: StepPlan) -> float:
        return self.seconds(*self.loads(plan))

    def least_s(self, plan: StepPlan) -> float:
        """The time that nearly every step like this one takes at least."""
        return self.expected_s(plan) * self._kinds[len(plan.tokens) > 0].quick

    def observe(self, plan: StepPlan, seconds: float) -> None:
        loads = self.loads(plan)
        self._observed.append((*loads, seconds))
        if self._far_below.observe(seconds, self.seconds(*loads)):
            self._fit.forget()  # such as a first step, for which kernels were compiled
            self._observed = self._observed[-NUM_FAR_BELOW:]
        if len(self._observed) >= min(BATCH, 1 + self._fit.count // GROWTH):
            observed, self._observed = np.array(self._observed, np.float64), []
            self.learn(observed[:, :-1], observed[:, -1])

    def learn(self, loads: Array, seconds: Array) -> None:
        """`loads` [n, 4]: the arguments of `seconds` for steps that took `seconds` [n]."""
        is_first = not self._fit.count
        expected_s = self._fit.learn(np.column_stack([np.ones(len(loads)), loads]), seconds)
        if is_first:
            return
        errors, with_prompts = seconds / np.maximum(expected_s, 1e-9), loads[:, 2] > 0
        for kind, chosen in zip(self._kinds, (~with_prompts, with_prompts), strict=True):
            kind.learn(errors[chosen])
