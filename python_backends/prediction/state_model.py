"""Predicts a length from some numbers, or from how far a state is from those of some answers: a ridge
regression of log length, and around it the distribution of the answers of which nearly the same was
predicted.

How far those were from what the other folds (`ridge`) predict of them says how far this one may be: quantiles
by conformal prediction, with Kaplan and Meier's estimate where answers were cut short. There is one for each
stage (`stage_models`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Floats, LengthPrediction
from python_backends.prediction.lengths import LEVELS, Doubles, Flags, distribution, order, predict
from python_backends.prediction.ridge import Decomposed, Ridge, deviations, fit

NEIGHBOURS = 100  # answers whose residuals make a distribution
CENTRES = 300  # answers, at most, from whose states distances are taken

HALF: Doubles = np.array([0.5])
BEYOND = 0.25  # of its tokens: what is to come of an answer that is longer than all that were like it


class StateModelError(ValueError):
    """Arrays that are no valid model."""


@dataclass(frozen=True, slots=True, eq=False)
class StateModel:
    layer: int  # after which the states were taken; `token_counts.LAYER`: no states, but counts of tokens
    weights: Doubles  # [hidden], or of the distances [centres]
    offset: float
    logs: Doubles  # [answers] ascending: log length of each as the other folds predict it
    lengths: Doubles  # [answers] tokens
    ended: Flags  # [answers] false: cut short
    # [centres, hidden] states of answers, each number divided by its `scale` [hidden]; none: no distances
    centres: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    scale: Floats = field(default_factory=lambda: np.ones(0, np.float32))

    def predict(self, state: Floats, layer: int, most: int) -> LengthPrediction | None:
        """Of an answer of at most `most` tokens. None if `state` is not what was learned from, or no
        numbers.
        """
        middle = self.log_length(state, layer)
        if middle is None:
            return None
        lengths, ended = self._near(middle)
        places = order(lengths, ended)
        below = distribution(ended[places], np.ones(len(places)))
        levels = np.minimum(LEVELS * (1 + 1 / len(places)), 1.0)
        return predict(np.maximum(lengths[places], 1.0), below, most, levels)

    def log_length(self, state: Floats, layer: int) -> float | None:
        """What the regression says; None as in `predict`."""
        has_centres = len(self.centres) > 0
        if layer != self.layer or state.shape != (self.scale if has_centres else self.weights).shape:
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # a state that is no number, or nearly
            numbers = distances(state / self.scale, self.centres) if has_centres else state
            middle = float(numbers @ self.weights) + self.offset
        return float(np.clip(middle, 0.0, np.log(self.lengths.max()))) if np.isfinite(middle) else None

    def to_come(self, middle: float, written: int = 0) -> float:
        """The median of what is still to come, at least 1, of an answer that has lasted `written` tokens and
        whose log length is said to be `middle`.
        """
        lengths, ended = self._near(middle)
        longer = lengths > written
        if not longer.any():
            return max(1.0, BEYOND * written)
        lengths, ended = lengths[longer], ended[longer]
        places = order(lengths, ended)
        below = distribution(ended[places], np.ones(len(places)))
        median = float(predict(lengths[places], below, lengths.max(), HALF).quantiles[0])
        return max(1.0, min(median, float(self.lengths.max())) - written)

    def _near(self, middle: float) -> tuple[Doubles, Flags]:
        """The lengths of the answers next to `middle`, in proportion to it, and whether they ended."""
        count = min(NEIGHBOURS, len(self.logs))
        begin = int(np.searchsorted(self.logs, middle)) - count // 2
        begin = max(0, min(begin, len(self.logs) - count))
        near = slice(begin, begin + count)
        return self.lengths[near] * np.exp(middle - self.logs[near]), self.ended[near]

    def arrays(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @staticmethod
    def of_arrays(found: dict[str, Any]) -> StateModel:
        """Raises StateModelError, or what arrays raise that are none."""
        numbers = {"layer": int(found["layer"]), "offset": float(found["offset"])}
        model = StateModel(**found | numbers)
        if not len(model.logs) or not len(model.logs) == len(model.lengths) == len(model.ended):
            raise StateModelError(f"{len(model.logs)} answers, {len(model.lengths)} lengths")
        if len(model.centres) and model.centres.shape != (len(model.weights), len(model.scale)):
            raise StateModelError(f"centres {model.centres.shape}, {len(model.weights)} weights")
        return model


@dataclass(frozen=True, slots=True, eq=False)
class KnownStates:
    """The states, or the counts of tokens, that answers had at one stage."""

    layer: int
    states: Floats  # [answers, hidden]
    lengths: Floats  # [answers] tokens
    ended: Flags  # [answers] false: cut short
    # [answers] which answers these are, where they are looked up at another stage
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.lengths)


def learned(known: KnownStates) -> StateModel:
    """From the numbers themselves, which are of one kind."""
    lengths = known.lengths.astype(np.float64)
    ridge = fit(Decomposed.of(known.states, is_each_scaled=False), np.log(lengths), known.ended)
    return of_ridge(known.layer, ridge, lengths, known.ended)[0]


def learned_by_distance(known: KnownStates) -> tuple[StateModel, Doubles]:
    """From the distances of the states from those of at most `CENTRES` of these answers. And the log length
    of each answer [answers] as the other folds predict it.
    """
    lengths = known.lengths.astype(np.float64)
    scale = deviations(known.states.astype(np.float64)).astype(np.float32)
    states = known.states / scale
    count = min(CENTRES, len(states))
    centres = states[np.linspace(0, len(states) - 1, count).round().astype(int)]
    away, between = (
        np.stack([distances(each, centres) for each in some]).astype(np.float64) for some in (states, centres)
    )
    decomposed = Decomposed.of_distances(away, between, states.shape[1])
    ridge = fit(decomposed, np.log(lengths), known.ended)
    model, logs = of_ridge(known.layer, ridge, lengths, known.ended)
    return replace(model, centres=centres, scale=scale), logs


def distances(state: Floats, centres: Floats) -> Floats:
    """[centres] of `state` [hidden] from each."""
    differences = centres - state
    found: Floats = np.sqrt(np.einsum("ij,ij->i", differences, differences))
    return found


def of_ridge(layer: int, ridge: Ridge, lengths: Doubles, ended: Flags) -> tuple[StateModel, Doubles]:
    """And the log length of each answer [answers] as the other folds predict it."""
    logs = np.clip(ridge.left_out, 0.0, np.log(lengths.max()))
    places = np.argsort(logs, kind="stable")
    model = StateModel(layer, ridge.weights, ridge.offset, logs[places], lengths[places], ended[places])
    return model, logs
