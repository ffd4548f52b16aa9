"""Predicts a length from the hidden state at the end of the prompt, or from its tokens: a ridge regression of
log length, and around it the distribution of the answers of which nearly the same was predicted.

How far those were from what the others predict of them says how far this one may be: quantiles by conformal
prediction, with Kaplan and Meier's estimate where answers were cut short. It is stored as plain arrays in one
.npz file. Fitted by the learner, used by the scheduler model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from python_backends.nouns.request import Floats, LengthPrediction
from python_backends.prediction.lengths import LEVELS, Doubles, Flags, distribution, order, predict
from python_backends.prediction.ridge import fit

NEIGHBOURS = 100  # answers whose residuals make a distribution


class StateModelError(ValueError):
    """A file does not contain a valid model."""


@dataclass(frozen=True, slots=True, eq=False)
class StateModel:
    layer: int  # after which the states were taken; `token_counts.LAYER`: no states, but counts of tokens
    weights: Doubles  # [hidden]
    offset: float
    logs: Doubles  # [answers] ascending: log length of each as the others predict it
    lengths: Doubles  # [answers] tokens
    ended: Flags  # [answers] false: cut short

    def predict(self, state: Floats, layer: int, most: int) -> LengthPrediction | None:
        """Of an answer of at most `most` tokens. None if `state` is not what was learned from, or no
        numbers.
        """
        if layer != self.layer or state.shape != self.weights.shape:
            return None
        middle = float(state @ self.weights) + self.offset
        if not np.isfinite(middle):
            return None
        middle = float(np.clip(middle, 0.0, np.log(self.lengths.max())))
        lengths, ended = self._near(middle)
        places = order(lengths, ended)
        below = distribution(ended[places], np.ones(len(places)))
        levels = np.minimum(LEVELS * (1 + 1 / len(places)), 1.0)
        return predict(np.clip(lengths[places], 1.0, most), below, levels)

    def _near(self, middle: float) -> tuple[Doubles, Flags]:
        """The lengths of the answers next to `middle`, in proportion to it, and whether they ended."""
        count = min(NEIGHBOURS, len(self.logs))
        begin = int(np.searchsorted(self.logs, middle)) - count // 2
        begin = max(0, min(begin, len(self.logs) - count))
        near = slice(begin, begin + count)
        return self.lengths[near] * np.exp(middle - self.logs[near]), self.ended[near]

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **{field.name: getattr(self, field.name) for field in fields(self)})

    @staticmethod
    def load(path: Path) -> StateModel:
        """Raises StateModelError."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                found = {field.name: arrays[field.name] for field in fields(StateModel)}
            layer, offset = int(found.pop("layer")), float(found.pop("offset"))
        except (OSError, EOFError, ValueError, TypeError, KeyError, BadZipFile) as error:
            raise StateModelError(f"{path}: {error}") from error
        model = StateModel(layer=layer, offset=offset, **found)
        if not len(model.logs) or not len(model.logs) == len(model.lengths) == len(model.ended):
            raise StateModelError(f"{path}: {len(model.logs)} answers, {len(model.lengths)} lengths")
        return model


@dataclass(frozen=True, slots=True, eq=False)
class KnownStates:
    """The states, or the counts of tokens, of answers that have ended."""

    layer: int
    states: Floats  # [answers, hidden]
    lengths: Floats  # [answers] tokens
    ended: Flags  # [answers] false: cut short

    def __len__(self) -> int:
        return len(self.lengths)


def learned(known: KnownStates) -> StateModel:
    lengths = known.lengths.astype(np.float64)
    ridge = fit(known.states, np.log(lengths), known.ended)
    logs = np.clip(ridge.left_out, 0.0, np.log(lengths.max()))
    places = np.argsort(logs, kind="stable")
    return StateModel(
        known.layer, ridge.weights, ridge.offset, logs[places], lengths[places], known.ended[places]
    )
