"""The real prompts as requests of simulated runs: how long a published model's answers are, and what was
predicted of each by what was learned from prompts about other topics.

`real_lengths --predictions` writes them to PREDICTED.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.bundled_prompts import greedy_request
from benchmarks.real_lengths.__main__ import STAGES
from benchmarks.real_lengths.scores import Answers
from benchmarks.real_prompts.prompts import FOLDER, digest, read_prompts
from benchmarks.scheduling.requests import Pool, Source
from python_backends.nouns.request import LengthPrediction, Request

LENGTHS, PREDICTED = FOLDER / "smollm2.json", FOLDER / "smollm2_predicted.json"
MAX_TOKENS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class RealPool(Pool):
    """n answers."""

    words: NDArray[np.float32]  # [n, 1 + levels] mean and quantiles, predicted from the text
    states: NDArray[np.float32]  # [n, 1 + levels] from the model's state at the end of the prompt

    def request(self, number: int, place: int) -> Request:
        return greedy_request(number, self.tokens[: self.num_input_tokens[place]], MAX_TOKENS)

    def prediction(self, place: int, source: Source) -> LengthPrediction:
        if source in (Source.WORDS, Source.STATE, Source.TAIL):
            return _prediction(self.words[place], source)
        return Pool.prediction(self, place, source)

    def later(self, place: int, source: Source) -> LengthPrediction | None:
        """What is predicted once the prompt has been computed. None: nothing else."""
        return _prediction(self.states[place], source) if source in (Source.STATE, Source.TAIL) else None


def _prediction(row: NDArray[np.float32], source: Source) -> LengthPrediction:
    mean, quantiles = float(row[0]), row[1:]
    if source is Source.TAIL:
        mean += float(quantiles[-2:].mean())  # of the longest tenth, roughly
    return LengthPrediction(mean, quantiles)


def read_real_pool(lengths: Path = LENGTHS, predicted: Path = PREDICTED) -> RealPool:
    """Raises ValueError if the files belong to other prompts."""
    prompts = read_prompts()
    answers, places = Answers.read(lengths, prompts)
    kept = json.loads(predicted.read_text("utf-8"))
    if kept["prompts"] != digest(prompts):
        raise ValueError(f"{predicted}: prompts: these predictions belong to other prompts")
    if kept["places"] != places:
        raise ValueError(f"{predicted}: places: predicted are other prompts than those answered in {lengths}")
    asked = np.isfinite(answers.lengths)
    seeds = asked.sum(axis=1)
    said = np.repeat(np.array(kept["predicted"], np.float32), seeds, axis=0)  # [n, stages, 1 + levels]
    counts = np.repeat(np.array(kept["prompt_tokens"], np.int64), seeds)
    history, forest, words, states = (said[:, STAGES.index(stage)] for stage in STAGES)
    return RealPool(
        tokens=np.zeros(counts.max(), np.int32),
        ends=counts.cumsum(),
        lengths=answers.lengths[asked].astype(np.int64),
        means=forest[:, 0].astype(np.float64),
        quantiles=forest[:, 1:],
        history_means=history[:, 0].astype(np.float64),
        history_quantiles=history[:, 1:],
        num_input_tokens=counts,
        words=words,
        states=states,
    )
