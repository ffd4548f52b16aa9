"""How long a step takes: a constant, and so much for each decode row, KV token, prefill token and prefill KV
token of it.

KV tokens are those that decode rows attend to. Each token of a chunk attends to all tokens before the chunk
and, on average, to half of the chunk: these are its prefill KV tokens, of which a chunk far into a long
prompt has many.

Learned while serving, by least squares over what was seen lately. The instance loop tells it of every step
and plans the next one just before the running one ends: not so early that a request that comes in the
meantime misses it, not so late that the engine waits. The slot scheduler reads from it what a request will
take; the simulated benchmarks run by it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.step import StepPlan

FEATURES = ("constant", "decode row", "KV token", "prefill token", "prefill KV token")
MEMORY = 2000  # steps: what is older counts less and less
WARM = 64  # steps that are learned from at once and all count in full
BATCH = 16  # later ones are learned from together
FAR = 4.0  # times the usual error: what is further off is an interruption, not the engine, and counts less
NEW = 1.0  # leverage of a step that goes beyond all that were seen
NUM_ERRORS = 256  # whose quantiles are known
QUICK = 0.05  # share of the steps that may take less than `least_s`
STAY = 1e-6  # how firmly a coefficient stays where it is when steps say nothing about it

Array = NDArray[np.float64]


def chunk_kv_tokens(start: Any, length: Any) -> Any:
    """Tokens that those of a chunk attend to, added up; numbers or arrays."""
    return length * (start + length / 2)


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
        self._run = -1  # of the latest plan
        self._first_kv_tokens = 0  # their sum over its decode rows

    def seconds(self, decode_rows: float, kv_tokens: float, prefill: float = 0, prefill_kv: float = 0) -> float:
        """Of a step with this many rows that decode, tokens that these attend to, tokens of prompts, and tokens
        that each of these attends to, added up; 0 before any step was seen.
        """
        constant, row, kv, token, attended = self.coefficients
        return constant + row * decode_rows + kv * kv_tokens + token * prefill + attended * prefill_kv

    def chunk_s(self, start: int, length: int) -> float:
        """What a chunk of `length` tokens adds to a step, `start` tokens into its prompt."""
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
        """[n] what whole prompts of `lengths` [n] tokens add to the steps that compute them."""
        token_s, attended_s = self.coefficients[3:]
        return token_s * lengths + attended_s * lengths**2 / 2

    def loads(self, plan: StepPlan) -> tuple[int, int, int, float]:
        """The arguments of `seconds` for a step. In a run nothing is added up again."""
        rows = plan.num_decodes if len(plan.tokens) else len(plan.slots)  # they come first
        if plan.run != self._run:
            self._run, self._first_kv_tokens = plan.run, int(plan.first_starts[:rows].sum())
        attended = 0.0
        if len(plan.tokens):
            attended = float(chunk_kv_tokens(plan.starts[rows:].astype(np.int64), plan.lengths[rows:]).sum())
        return rows, self._first_kv_tokens + rows * (plan.step_in_run + 1), len(plan.tokens), attended

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
        weights = self._weights(features, np.abs(seconds - expected_s))
        fading = (1.0 - 1.0 / MEMORY) ** len(loads)
        self._products = self._products * fading + (features.T * weights) @ features
        self._times = self._times * fading + (features.T * weights) @ seconds
        self._solve()

    def _weights(self, features: Array, errors_s: Array) -> Array:
        """[n] Interruptions count less. A step unlike those before is none, however far off it is: it is the
        first of its kind.
        """
        self._count += len(errors_s)
        weights = np.ones(len(errors_s))
        if self._count > WARM and self._usual_error_s > 0:
            weights = np.minimum(1.0, FAR * self._usual_error_s / np.maximum(errors_s, 1e-9))
        share = max(1.0 - 0.98 ** len(errors_s), len(errors_s) / self._count)
        self._usual_error_s += (float((weights * errors_s).mean()) - self._usual_error_s) * share
        return np.where(self._leverages(features) > NEW, 1.0, weights)

    def _leverages(self, features: Array) -> Array:
        """[n] how little the steps so far say about these: about 1 / m of one that is like m of them."""
        products, scale = self._scaled()
        scaled = features / scale
        leverages: Array = (scaled * np.linalg.solve(products, scaled.T).T).sum(axis=1)
        return leverages

    def _solve(self) -> None:
        """Least squares; what would be negative is 0, and the others are solved for again."""
        products, scale = self._scaled()
        times, used = self._times / scale + STAY * np.array(self.coefficients) * scale, np.ones(len(FEATURES), bool)
        while True:
            found = np.linalg.solve(products[np.ix_(used, used)], times[used])
            if (found >= 0).all():
                break
            used[np.flatnonzero(used)[found.argmin()]] = False
        coefficients = np.zeros(len(FEATURES))
        coefficients[used] = found / scale[used]
        self.coefficients = coefficients.tolist()

    def _scaled(self) -> tuple[Array, Array]:
        """The products with a diagonal of 1 + STAY, and what each feature was divided by: their sizes differ
        by 10^8.
        """
        scale = np.sqrt(np.diag(self._products))
        scale[scale == 0] = 1.0
        return self._products / np.outer(scale, scale) + STAY * np.eye(len(FEATURES)), scale
