"""How long a step takes: a constant, and so much for each decode row, KV token, prefill token and training token of it.

Learned while serving, by least squares over what was seen lately. The instance loop tells it of every step and plans the next one
just before the running one ends: not so early that a request that comes in the meantime misses it, not so late that the engine waits.
The slot scheduler reads from it what a request will take; the simulated benchmarks run by it.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from python_backends.step import StepPlan

FEATURES = ("constant", "decode row", "KV token", "prefill token", "training token")
MEMORY = 2000  # steps: what is older counts less and less
WARM = 32  # steps that all count in full; later ones that are far off count less
FAR = 4.0  # times the usual error: what is further off is an interruption, not the engine
NUM_ERRORS = 256  # whose quantiles are known


class StepTime:
    """`coefficients` are seconds for one of each of `FEATURES`, none of them negative.

    The normal equations Σ w·x·xᵀ·c = Σ w·x·t are kept with old steps fading, and each new step moves the coefficients once around,
    one after the other, to where the squared error is least: what was not seen to change keeps its coefficient.
    """

    def __init__(self) -> None:
        self.coefficients = [0.0] * len(FEATURES)
        self._products = [[0.0] * len(FEATURES) for _ in FEATURES]  # Σ w·x·xᵀ
        self._times = [0.0] * len(FEATURES)  # Σ w·x·t
        self._usual_error_s = 0.0
        self.errors: deque[float] = deque(maxlen=NUM_ERRORS)  # measured / expected of the latest steps
        self._count = 0

    def seconds(self, decode_rows: float, kv_tokens: float, prefill_tokens: float = 0, training_tokens: float = 0) -> float:
        """Of a step with so many rows that decode, tokens that these attend to, and tokens of prompts; 0 before any was seen."""
        constant, row, kv, prefill, training = self.coefficients
        return constant + row * decode_rows + kv * kv_tokens + prefill * prefill_tokens + training * training_tokens

    @property
    def seconds_a_prefill_token(self) -> float:
        return self.coefficients[FEATURES.index("prefill token")]

    def expected_s(self, plan: StepPlan) -> float:
        return self.seconds(*_loads(plan))

    def error_quantile(self, level: float) -> float:
        """Of measured / expected seconds of the latest steps; 1 before any was seen."""
        return float(np.quantile(self.errors, level)) if self.errors else 1.0

    def observe(self, plan: StepPlan, seconds: float) -> None:
        self.learn(_loads(plan), seconds)

    def learn(self, loads: tuple[float, ...], seconds: float) -> None:
        """`loads`: the arguments of `seconds` for a step that took `seconds`."""
        expected_s = self.seconds(*loads)
        weight = self._weight(abs(seconds - expected_s))
        if expected_s > 0:
            self.errors.append(seconds / expected_s)
        features = (1.0, *loads, *[0.0] * (len(FEATURES) - 1 - len(loads)))
        seen = [i for i, feature in enumerate(features) if feature]
        keep = 1.0 - 1.0 / MEMORY
        for i, row in enumerate(self._products):
            self._times[i] *= keep
            row[:] = [product * keep for product in row]
        for i in seen:
            self._times[i] += weight * features[i] * seconds
            for j in seen:
                self._products[i][j] += weight * features[i] * features[j]
        self._descend()

    def _weight(self, error_s: float) -> float:
        self._count += 1
        far = self._count > WARM and error_s > FAR * self._usual_error_s > 0
        weight = FAR * self._usual_error_s / error_s if far else 1.0
        self._usual_error_s += (weight * error_s - self._usual_error_s) * max(0.02, 1.0 / self._count)
        return weight

    def _descend(self) -> None:
        for i, row in enumerate(self._products):
            if row[i] > 0:
                others = sum(map(float.__mul__, row, self.coefficients)) - row[i] * self.coefficients[i]
                self.coefficients[i] = max(0.0, (self._times[i] - others) / row[i])


def _loads(plan: StepPlan) -> tuple[int, int, int]:
    """Decode rows, tokens that they attend to, prefill tokens."""
    rows = plan.num_decodes  # they come first
    return rows, int(plan.starts[:rows].sum()) + rows, len(plan.tokens)
