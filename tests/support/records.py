"""Answers that have ended, as tests need them."""

from __future__ import annotations

import numpy as np

from python_backends.nouns.messages import AnswerRecord, LengthAnswer
from python_backends.nouns.request import Finish, LengthPrediction
from python_backends.prediction.features import NUM_FEATURES

ENCODER = "words"


def prediction(mean: float) -> LengthPrediction:
    return LengthPrediction(mean, (mean * np.array([0.5, 0.8, 1.0, 1.2, 1.5, 2.0])).astype(np.float32))


def record(
    instruction: str = "Say it",
    num_input: int = 10,
    num_output: int = 20,
    finish: Finish = Finish.STOP,
    mean: float | None = None,
    features: bool = True,
    user_input: str = "",
) -> AnswerRecord:
    made = np.full(NUM_FEATURES, num_input, np.float32) if features else None
    answer = LengthAnswer(None if mean is None else prediction(mean), 1, made, ENCODER if features else "")
    return AnswerRecord(1.5e9, instruction, num_input + 3, num_input, num_output, finish, answer, user_input)
