"""What every comparison of policies has of one policy at one load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Times(NamedTuple):
    """Of n answers: when they were asked for, when their first and last tokens came, and how many."""

    asked_s: NDArray[np.float64]  # [n] ascending
    first_s: NDArray[np.float64]  # [n]
    last_s: NDArray[np.float64]  # [n]
    tokens: NDArray[np.int64]  # [n]


@dataclass(frozen=True, slots=True)
class Figures:
    policy: str
    load: float
    arrivals: str
    goodput: float  # requests a second within both limits
    mean_e2e_s: float
    p99_e2e_s: float
    mean_ttft_s: float
    p99_ttft_s: float
    preemptions: int


def figures_of(
    policy: str, load: float, cv: float, times: Times, preemptions: int, limits_s: tuple[float, float]
) -> dict[str, Any]:
    """The fields of `Figures`. `limits_s`: of the first token, and a token on average, for goodput."""
    ttft_s, e2e_s = times.first_s - times.asked_s, times.last_s - times.asked_s
    tpot_s = (times.last_s - times.first_s) / np.maximum(1, times.tokens - 1)
    good = np.count_nonzero((ttft_s <= limits_s[0]) & (tpot_s <= limits_s[1]))
    return {
        "policy": policy,
        "load": load,
        "arrivals": "Poisson" if cv == 1 else f"Gamma, CV {cv:g}",
        "goodput": round(good / float(times.asked_s[-1] - times.asked_s[0]), 3),
        "mean_e2e_s": round(float(e2e_s.mean()), 3),
        "p99_e2e_s": round(float(np.percentile(e2e_s, 99)), 3),
        "mean_ttft_s": round(float(ttft_s.mean()), 3),
        "p99_ttft_s": round(float(np.percentile(ttft_s, 99)), 3),
        "preemptions": preemptions,
    }
