"""Predictions of lengths that were not seen, and how good they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_lengths.regression import Spread, parts, quantile, says, weighed
from benchmarks.real_prompts.prompts import Prompt, digest, folds
from commands.logged_answers import rank_correlation
from python_backends.nouns.request import Floats
from python_backends.prediction.lengths import LEVELS, Doubles, Flags
from python_backends.prediction.ridge import Decomposed
from python_backends.prediction.state_model import NEIGHBOURS

SPLITS = {"new topics": "topic", "new kinds": "kind"}
MEDIAN, NINETY = (LEVELS.tolist().index(level) for level in (0.5, 0.9))
Distribution = tuple[Doubles, Doubles]  # lengths ascending, their probabilities


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """To n prompts with three seeds each. The first is known of all of them."""

    lengths: Doubles  # [n, seeds] tokens; NaN: not asked yet
    ended: Flags  # [n, seeds] false: cut at the most

    @property
    def most(self) -> float:
        return float(np.nanmax(self.lengths))

    @staticmethod
    def read(path: Path, prompts: Sequence[Prompt], most: int | None = None) -> tuple[Answers, list[int]]:
        """And to which of `prompts` they are: at most `most`, those whose first answer is known.

        Raises ValueError if they belong to other prompts.
        """
        kept = json.loads(path.read_text("utf-8"))
        if kept.get("prompts") != digest(list(prompts)):
            raise ValueError(f"{path}: prompts: these lengths belong to other prompts")
        lengths = np.array(kept["lengths"], np.float64)
        places = np.flatnonzero(np.isfinite(lengths[:, 0]))[:most]
        return Answers(np.abs(lengths[places]), lengths[places] > 0), places.tolist()


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """Of n prompts."""

    mean: Doubles  # [n]
    rank: Doubles  # [n] by what requests are ordered
    quantiles: Doubles  # [n, LEVELS]

    @staticmethod
    def of(found: Sequence[Distribution], rank: Doubles | None = None) -> Said:
        """`rank`: None: by the means."""
        means = np.array([float(lengths @ chances) for lengths, chances in found])
        quantiles = [[quantile(*each, level) for level in LEVELS] for each in found]
        return Said(means, means if rank is None else rank, np.array(quantiles))


@dataclass(frozen=True, slots=True)
class Score:
    error: float  # mean, absolute, of the median, tokens
    error_of_mean: float
    rank_correlation: float
    covered: float  # by the 0.9 quantile
    # of those whose 0.9 quantile is below the limit, which would cover all; None: there are none
    covered_below: float | None
    width: float  # mean of the 0.9 quantile / mean length


def score(said: Said, answers: Answers) -> Score:
    most, lengths = answers.most, answers.lengths
    median, mean, ninety = (
        np.clip(each, 1.0, most)[:, None]
        for each in (said.quantiles[:, MEDIAN], said.mean, said.quantiles[:, NINETY])
    )
    rank, asked = np.broadcast_to(said.rank[:, None], lengths.shape), np.isfinite(lengths)
    covered, below = lengths <= ninety, (ninety < most) & asked
    return Score(
        round(float(np.nanmean(np.abs(median - lengths))), 1),
        round(float(np.nanmean(np.abs(mean - lengths))), 1),
        round(rank_correlation(rank[asked], lengths[asked]), 3),
        round(float(covered[asked].mean()), 3),
        round(float(covered[below].mean()), 3) if below.any() else None,
        round(float(ninety.mean() / np.nanmean(lengths)), 2),
    )


# what is learned from the prompts of the first flags is said of those of the second
Predictor = Callable[[Flags, Flags], Said]


def crossed(predictor: Predictor, prompts: Sequence[Prompt], by: str, learned: Flags | None = None) -> Said:
    """`learned` [n]: the prompts whose answers are known; None: all, but those of the fold."""
    made = Said(np.zeros(len(prompts)), np.zeros(len(prompts)), np.zeros((len(prompts), len(LEVELS))))
    for part in parts(folds(list(prompts), by)):  # type: ignore[arg-type]
        seen = ~part if learned is None else ~part & learned
        found = predictor(seen, part)
        for name in Said.__slots__:
            getattr(made, name)[part] = getattr(found, name)
    return made


def same_for_all(lengths: Doubles, ended: Flags, count: int) -> Said:
    return Said.of([weighed(lengths, ended)] * count, np.zeros(count))


class ByRidge:
    """Ridge regression of log length on `features` [n, …], from the answers with the first seed."""

    def __init__(self, features: Floats, answers: Answers) -> None:
        self._features, self._answers = features, answers
        self._solved: dict[bytes, Decomposed] = {}

    def at(
        self, strength: float, neighbours: int = NEIGHBOURS, shifted: bool = True, plain: bool = False
    ) -> Predictor:
        """`neighbours`, `shifted`: of the spread; `plain`: cut answers count as if they had ended."""

        def predict(seen: Flags, asked: Flags) -> Said:
            lengths, ended = self._answers.lengths[seen, 0], self._answers.ended[seen, 0] | plain
            ridge = self._solve(seen).fit_cut(np.log(lengths), ended, strength)
            said, most = says(ridge, self._features[asked]), np.log(self._answers.most)
            known = Spread.of(np.minimum(ridge.left_out, most), lengths, ended, neighbours, shifted)
            return spread(np.minimum(said, most), known)

        return predict

    def _solve(self, seen: Flags) -> Decomposed:
        key = seen.tobytes()
        if key not in self._solved:
            self._solved[key] = Decomposed.of(self._features[seen])
        return self._solved[key]


def spread(said: Doubles, known: Spread) -> Said:
    return Said.of([known.near(float(each)) for each in said], said)


def kinds_of(prompts: Sequence[Prompt]) -> NDArray[np.int64]:
    return np.unique([prompt.kind for prompt in prompts], return_inverse=True)[1]
