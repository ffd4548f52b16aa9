"""A regression for each stage at which a length is predicted, learned together from the same answers.

While an answer is written, the regression is of what is still to come. Its base is what was said at the
prompt's end, given that the answer has lasted so long: a stage whose regression errs no less than that has
none, nor has one of which too few answers are known. Stored as plain arrays in one .npz file. Fitted by the
learner, used by the scheduler model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from python_backends.nouns.request import Floats, LengthPrediction
from python_backends.nouns.stages import PROMPT_END, STAGES, TEXT, WRITTEN, name_of
from python_backends.prediction.lengths import Doubles, Flags
from python_backends.prediction.ridge import Decomposed
from python_backends.prediction.state_model import (
    KnownStates,
    StateModel,
    StateModelError,
    learned,
    learned_by_distance,
    of_ridge,
)
from python_backends.prediction.versions import DAMAGED

MIN_ANSWERS = 50  # of a stage, for its regression
WORTH = 0.95  # of its base's error: a regression that errs more is not used
# of the penalty while an answer is written, for each number of a state: too few answers last so long to
# choose one by
STRENGTH = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class StageModels:
    models: Mapping[int, StateModel]  # by stage

    def predict(self, stage: int, numbers: Floats, layer: int, most: int) -> LengthPrediction | None:
        """Of an answer of at most `most` tokens, from the `numbers` of this stage. None: nothing was learned,
        or from other numbers.
        """
        model, written = self.models.get(stage), max(stage, 0)
        found = None if model is None else model.predict(numbers, layer, max(1, most - written))
        if found is None:
            return None
        return LengthPrediction(written + found.mean, np.float32(written) + found.quantiles)

    def save(self, path: Path) -> None:
        named = {
            f"{name_of(stage)}.{name}": values
            for stage, model in self.models.items()
            for name, values in model.arrays().items()
        }
        with path.open("wb") as file:
            np.savez(file, **named)

    @staticmethod
    def load(path: Path) -> StageModels:
        """Raises StateModelError."""
        names = [each.name for each in fields(StateModel)]
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                models = {
                    stage: StateModel.of_arrays({name: arrays[f"{name_of(stage)}.{name}"] for name in names})
                    for stage in STAGES
                    if f"{name_of(stage)}.layer" in arrays
                }
        except DAMAGED as error:
            raise StateModelError(f"{path}: {error}") from error
        if not models:
            raise StateModelError(f"{path}: it has no regression")
        return StageModels(models)


def learned_stages(known: Mapping[int, KnownStates]) -> StageModels:
    """From the answers that are known at each stage."""
    models: dict[int, StateModel] = {}
    enough = {stage: each for stage, each in known.items() if len(each) >= MIN_ANSWERS}
    if TEXT in enough:
        models[TEXT] = learned(enough[TEXT])
    if PROMPT_END in enough:
        prompts = enough[PROMPT_END]
        models[PROMPT_END], said = learned_by_distance(prompts)
        for stage in WRITTEN:
            model = (
                _later(stage, enough[stage], prompts, models[PROMPT_END], said) if stage in enough else None
            )
            if model is not None:
                models[stage] = model
    return StageModels(models)


def _later(
    stage: int, known: KnownStates, prompts: KnownStates, before: StateModel, said: Doubles
) -> StateModel | None:
    """`said` [prompts]: the log length of each as the other folds predict it."""
    _, here, there = np.intersect1d(known.numbers, prompts.numbers, return_indices=True)
    is_longer = known.lengths[here] > stage
    here, there = here[is_longer], there[is_longer]
    if len(here) < MIN_ANSWERS or known.layer != prompts.layer:
        return None
    to_come, ended = known.lengths[here].astype(np.float64) - stage, known.ended[here]
    base = np.array([before.to_come(float(each), stage) for each in said[there]])
    strength = STRENGTH * known.states.shape[1]
    ridge = Decomposed.of(known.states[here]).fit_cut(np.log(to_come), ended, strength)
    model, logs = of_ridge(known.layer, ridge, to_come, ended)
    told = np.array([model.to_come(float(each)) for each in logs])
    return model if _error(told, to_come, ended) < WORTH * _error(base, to_come, ended) else None


def _error(told: Doubles, to_come: Doubles, ended: Flags) -> float:
    """Mean, in tokens; of answers that were cut, how much too short the predictions were."""
    return float(np.where(ended, np.abs(told - to_come), (to_come - told).clip(0)).mean())
