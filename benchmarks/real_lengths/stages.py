"""What a server says while an answer is written: the regressions of all stages, learned from the answers to
other prompts, asked when the answer reaches each stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.real_lengths.written import Written
from commands.logged_answers import rank_correlation
from python_backends.nouns.request import QUANTILE_LEVELS, Floats
from python_backends.nouns.stages import PROMPT_END, WRITTEN
from python_backends.prediction.lengths import Flags
from python_backends.prediction.read_states import ReadStates
from python_backends.prediction.stage_models import learned_stages
from python_backends.prediction.state_model import KnownStates

LAYER = 1  # any number: there is one
MEDIAN, NINETY = QUANTILE_LEVELS.index(0.5), QUANTILE_LEVELS.index(0.9)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One answer at one stage, in tokens still to come."""

    stage: int
    true: float
    base: float  # the median at the prompt's end, given that it has lasted
    told: float  # the median as served
    nine: float  # the 0.9 quantile
    has_regression: bool


class Stages:
    def __init__(self, written: Written, ends: Floats, most: int) -> None:
        """`ends` [answers, width]: the states at the prompts' ends; `most`: tokens of an answer."""
        self._ends, self._most = ends, most
        self._lengths, self._ended = np.abs(written.lengths).astype(np.float32), written.lengths > 0
        self._states: dict[int, dict[int, Floats]] = {stage: {} for stage in WRITTEN}
        for number in range(len(ends)):
            read = ReadStates()
            for row in np.flatnonzero(written.prompt == number):
                found = read.add(int(written.made[row]), written.newest[row])
                if found is not None:
                    self._states[int(written.made[row])][number] = found

    def rows(self, parts: list[Flags]) -> list[dict[str, Any]]:
        """For each stage; `parts` [answers] of each fold: whether it is asked."""
        asked = [each for part in parts for each in self._asked(part)]
        return [
            _row(stage, of_stage)
            for stage in WRITTEN
            if len(of_stage := [each for each in asked if each.stage == stage]) > 1
        ]

    def _asked(self, part: Flags) -> list[Asked]:
        learned, found = learned_stages(self._known(np.flatnonzero(~part).tolist())), []
        before = learned.models[PROMPT_END]
        for stage, states in self._states.items():
            for number in (each for each in states if part[each]):
                said = before.log_length(self._ends[number], LAYER)
                assert said is not None
                true, base = float(self._lengths[number]) - stage, before.to_come(said, stage)
                told = learned.predict(stage, states[number], LAYER, self._most)
                middle, nine = (base, np.nan) if told is None else told.quantiles[[MEDIAN, NINETY]] - stage
                found.append(Asked(stage, true, base, float(middle), float(nine), told is not None))
        return found

    def _known(self, numbers: list[int]) -> dict[int, KnownStates]:
        of_stages = {stage: self._of(states, numbers) for stage, states in self._states.items()}
        at_end = self._of(dict(enumerate(self._ends)), numbers)
        return {PROMPT_END: at_end} | {stage: each for stage, each in of_stages.items() if len(each)}

    def _of(self, states: dict[int, Floats], numbers: list[int]) -> KnownStates:
        here = np.array([number for number in numbers if number in states], np.int64)
        values = np.array([states[number] for number in here.tolist()], np.float32)
        return KnownStates(LAYER, values, self._lengths[here], self._ended[here], here)


def _row(stage: int, asked: list[Asked]) -> dict[str, Any]:
    columns = ("true", "base", "told", "nine")
    true, base, told, nine = (np.array([getattr(each, name) for each in asked]) for name in columns)
    known = ~np.isnan(nine)
    return {
        "after": stage,
        "answers": len(asked),
        "error": round(float(np.abs(told - true).mean()), 1),
        "rank_correlation": round(rank_correlation(told, true), 3),
        "error_of_a_constant": round(float(np.abs(np.median(true) - true).mean()), 1),
        "error_of_the_base": round(float(np.abs(base - true).mean()), 1),
        "with_a_regression": round(float(np.mean([each.has_regression for each in asked])), 3),
        "covered_0.9": round(float((true <= nine)[known].mean()), 3) if known.any() else None,
    }
