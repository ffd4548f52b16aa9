"""When requests are due: in a closed loop, each after the end of another one; in an open loop, at random
times that do not depend on answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Load:
    """Closed loop with `concurrency`, or open loop with `rate` requests a second on average."""

    concurrency: int = 0
    rate: float = 0.0
    cv: float = 1.0  # coefficient of variation of the gaps: 0 even, 1 Poisson, above 1 in bursts

    def __str__(self) -> str:
        if self.concurrency:
            return f"{self.concurrency} in flight"
        kind = {0.0: "even", 1.0: "Poisson"}.get(self.cv, f"Gamma, cv {self.cv:g}")
        return f"{self.rate:g}/s, {kind}"


def due_times(load: Load, count: int, seed: int) -> NDArray[np.float64]:
    """Returns seconds from the start, [count], ascending. The gaps of an open loop have a Gamma distribution
    with mean 1 / rate; with cv 0 they are all equal.
    """
    if load.cv == 0:
        return np.arange(1, count + 1) / load.rate
    shape = 1 / load.cv**2  # of a Gamma distribution: its coefficient of variation is 1 / sqrt(shape)
    gaps = np.random.default_rng(seed).gamma(shape, 1 / (load.rate * shape), count)
    return np.cumsum(gaps)
