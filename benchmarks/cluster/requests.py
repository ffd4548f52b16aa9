"""The requests of `cluster`: power-law lengths, Gamma arrivals, and requests that already run at the
start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_TOKENS = 8  # of a prompt, and of an answer
MOST_TOKENS = 6144
MAX_MODEL_TOKENS = 2 * MOST_TOKENS + 1
BEGIN_S = 10.0  # until then there are only the requests of the start
Doubles = NDArray[np.float64]
Counts = NDArray[np.int64]


class PowerLaw:
    """Lengths from LEAST_TOKENS to MOST_TOKENS with density ∝ length^-exponent, whose mean is `mean`."""

    def __init__(self, mean: float) -> None:
        low, high = 0.5, 6.0
        while high - low > 1e-9:
            self.exponent = (low + high) / 2
            low, high = (self.exponent, high) if self._mean() > mean else (low, self.exponent)

    def quantiles(self, levels: Doubles) -> Doubles:
        """Returns [n] lengths: the share `levels` of all lengths is below them."""
        power = 1.0 - self.exponent
        least, most = LEAST_TOKENS**power, MOST_TOKENS**power
        lengths: Doubles = (least + levels * (most - least)) ** (1.0 / power)
        return lengths

    def draw(self, count: int, random: np.random.Generator) -> Counts:
        """Returns [count] lengths, one from each of `count` equally likely classes: their mean is nearly
        exact.
        """
        levels = (random.permutation(count) + random.random(count)) / count
        return np.maximum(1, np.round(self.quantiles(levels))).astype(np.int64)

    def _mean(self) -> float:
        return float(self.quantiles((np.arange(100_000) + 0.5) / 100_000).mean())


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """n requests in order of arrival. The first `num_before` already run at the start and are not in any
    figure: a part of their answers is in their prompts.
    """

    due_s: Doubles  # [n]
    prompts: Counts  # [n] tokens
    answers: Counts  # [n] tokens
    priorities: Counts  # [n]
    num_before: int
    asks_exactly: bool = False  # whether `max_tokens` of each request is the length of its answer

    def __len__(self) -> int:
        return len(self.due_s)


@dataclass(frozen=True, slots=True)
class Load:
    rate: float  # requests a second
    cv: float  # coefficient of variation of the gaps between arrivals
    mean_tokens: float  # of prompts, and of answers
    num_before: int
    high_share: float = 0.0  # of requests of priority 1


def draw_work(load: Load, count: int, seed: int) -> Work:
    """Returns `count` requests, after those of the start."""
    random, law, shape = np.random.default_rng(seed), PowerLaw(load.mean_tokens), 1 / load.cv**2
    gaps_s = random.gamma(shape, 1 / shape, count)
    due_s = BEGIN_S + np.cumsum(gaps_s) / gaps_s.mean() / load.rate
    prompts, answers = law.draw(count, random), law.draw(count, random)
    before = _running(law, load.num_before, random)
    priorities = (random.random(count) < load.high_share).astype(np.int64)
    nothing = np.zeros(load.num_before)
    return Work(
        due_s=np.concatenate([nothing, due_s]),
        prompts=np.concatenate([before[0], prompts]),
        answers=np.concatenate([before[1], answers]),
        priorities=np.concatenate([nothing.astype(np.int64), priorities]),
        num_before=load.num_before,
    )


def _running(law: PowerLaw, count: int, random: np.random.Generator) -> tuple[Counts, Counts]:
    """Returns prompts with the answer so far, and the tokens still to come, of `count` requests that run at a
    random time: longer answers are more likely among them, in proportion to their length.
    """
    answers = law.draw(20_000, random)
    answers = random.choice(answers, count, p=answers / answers.sum())
    made = (random.random(count) * answers).astype(np.int64)
    return law.draw(count, random) + made, answers - made
