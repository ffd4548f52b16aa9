"""How long a step takes: a constant, and so much for each decode row, KV token, prefill token and training token of it.

Learned while serving, by least squares over what was seen lately. The instance loop tells it of every step and plans the next one
just before the running one ends: not so early that a request that comes in the meantime misses it, not so late that the engine waits.
The slot scheduler reads from it what a request will take; the simulated benchmarks run by it.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from python_backends.request import Ids
from python_backends.step import StepPlan

FEATURES = ("constant", "decode row", "KV token", "prefill token", "training token")
MEMORY = 2000  # steps: what is older counts less and less
WARM = 64  # steps that are learned from at once and all count in full
BATCH = 16  # later ones are learned from together
FAR = 4.0  # times the usual error: what is further off is an interruption, not the engine, and counts less
NUM_ERRORS = 256  # whose quantiles are known
QUICK = 0.05  # share of the steps that may take less than `least_s`
STAY = 1e-6  # how firmly a coefficient stays where it is when steps say nothing about it

Array = NDArray[np.float64]


class _Kind:
    """Steps that are alike."""

    def __init__(self) -> None:
        self.quick = 0.0  # measured / expected of one that is quicker than most; 0 before any was seen
        self._errors: deque[float] = deque(maxlen=NUM_ERRORS)

    def learn(self, errors: Array) -> None:
        if len(errors):
            self._errors.extend(errors.tolist())
            self.quick = min(1.0, float(np.quantile(self._errors, QUICK)))


class StepTime:
    """`coefficients` are seconds for one of each of `FEATURES`, none of them negative.

    The normal equations Σ w·x·xᵀ·c = Σ w·x·t are kept, with old steps fading.
    """

    def __init__(self) -> None:
        self.coefficients = [0.0] * len(FEATURES)
        self.errors: deque[float] = deque(maxlen=NUM_ERRORS)  # measured / expected of the latest steps
        self._products: Array = np.zeros((len(FEATURES), len(FEATURES)))  # Σ w·x·xᵀ
        self._times: Array = np.zeros(len(FEATURES))  # Σ w·x·t
        self._kinds = (_Kind(), _Kind())  # steps without prompts, and those with some, whose times are less certain
        self._usual_error_s = 0.0
        self._count = 0
        self._observed: list[tuple[float, ...]] = []  # loads and seconds, not yet learned from
        self._firsts: Ids | None = None  # of the latest plan
        self._first_kv_tokens = 0  # their sum over its decode rows

    def seconds(self, decode_rows: float, kv_tokens: float, prefill_tokens: float = 0, training_tokens: float = 0) -> float:
        """Of a step with so many rows that decode, tokens that these attend to, and tokens of prompts; 0 before any was seen."""
        constant, row, kv, prefill, training = self.coefficients
        return constant + row * decode_rows + kv * kv_tokens + prefill * prefill_tokens + training * training_tokens

    def prefill_tokens(self, limit_s: float, decode_rows: int, kv_tokens: int) -> float:
        """So many fit beside such rows into a step of `limit_s`, or of twice what it takes without them if that is longer."""
        step_s = self.seconds(decode_rows, kv_tokens)
        a_token_s = self.seconds_a_prefill_token
        return max(limit_s - step_s, step_s) / a_token_s if a_token_s else math.inf

    @property
    def seconds_a_prefill_token(self) -> float:
        return self.coefficients[FEATURES.index("prefill token")]

    def loads(self, plan: StepPlan) -> tuple[int, int, int, int]:
        """The arguments of `seconds` for a step. In a steady run nothing is added up again."""
        rows = plan.num_decodes if len(plan.tokens) else len(plan.slots)  # they come first
        if plan.firsts is not self._firsts:
            self._firsts, self._first_kv_tokens = plan.firsts, int(plan.firsts[:rows].sum())
        return rows, self._first_kv_tokens + rows * (plan.further + 1), len(plan.tokens), 0

    def expected_s(self, plan: StepPlan) -> float:
        return self.seconds(*self.loads(plan))

    def least_s(self, plan: StepPlan) -> float:
        """What nearly every such step takes at least."""
        return self.expected_s(plan) * self._kinds[len(plan.tokens) > 0].quick

    def error_quantile(self, level: float) -> float:
        """Of measured / expected seconds of the latest steps; 1 before any was seen."""
        return float(np.quantile(self.errors, level)) if self.errors else 1.0

    def observe(self, plan: StepPlan, seconds: float) -> None:
        self._observed.append((*self.loads(plan), seconds))
        if self._count < WARM or len(self._observed) == BATCH:
            observed, self._observed = np.array(self._observed, np.float64), []
            self.learn(observed[:, :-1], observed[:, -1])

    def learn(self, loads: Array, seconds: Array) -> None:
        """`loads` [n, 4]: the arguments of `seconds` for steps that took `seconds` [n]."""
        features = np.column_stack([np.ones(len(loads)), loads])  # [n, features]
        expected_s = features @ self.coefficients
        if self._count:
            errors, with_prompts = seconds / np.maximum(expected_s, 1e-9), loads[:, 2] > 0
            self.errors.extend(errors.tolist())
            for kind, chosen in zip(self._kinds, (~with_prompts, with_prompts), strict=True):
                kind.learn(errors[chosen])
        weights = self._weights(np.abs(seconds - expected_s))
        fading = (1.0 - 1.0 / MEMORY) ** len(loads)
        self._products = self._products * fading + (features.T * weights) @ features
        self._times = self._times * fading + (features.T * weights) @ seconds
        self._solve()

    def _weights(self, errors_s: Array) -> Array:
        self._count += len(errors_s)
        weights = np.ones(len(errors_s))
        if self._count > WARM and self._usual_error_s > 0:
            weights = np.minimum(1.0, FAR * self._usual_error_s / np.maximum(errors_s, 1e-9))
        share = max(1.0 - 0.98 ** len(errors_s), len(errors_s) / self._count)
        self._usual_error_s += (float((weights * errors_s).mean()) - self._usual_error_s) * share
        return weights

    def _solve(self) -> None:
        """Least squares; what would be negative is 0, and the others are solved for again."""
        old, used = np.array(self.coefficients), np.ones(len(FEATURES), bool)
        stay = STAY * np.diag(self._products) + 1e-12
        while True:
            products = self._products[np.ix_(used, used)] + np.diag(stay[used])
            found = np.linalg.solve(products, (self._times + stay * old)[used])
            if (found >= 0).all():
                break
            used[np.flatnonzero(used)[found.argmin()]] = False
        coefficients = np.zeros(len(FEATURES))
        coefficients[used] = found
        self.coefficients = coefficients.tolist()
