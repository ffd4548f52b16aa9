"""Predicts a length from recent answers alone: used before anything is learned.

Of the recent answers to the same instruction it takes those with the nearest input length; with fewer than
MIN_ANSWERS to that instruction, it takes them of all recent answers. It uses no texts and is cheap. Kept by
the scheduler model of the answers that it has seen, by benchmarks from the request log.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from python_backends.nouns.request import LengthPrediction
from python_backends.prediction.lengths import observed

MAX_ANSWERS = 4000  # the newest ones
MIN_ANSWERS = 5  # with fewer there is no prediction
NEIGHBOURS = 24
MAX_SEEN = 500  # newest answers of `RecentAnswers`


class Answered(NamedTuple):
    instruction: int  # its id
    num_input_tokens: int
    num_output_tokens: int
    ended: bool  # false: cut short


class AnswerHistory:
    def __init__(self, answers: Sequence[Answered] = ()) -> None:
        """`answers`, newest first."""
        groups = defaultdict(list)
        for answer in answers[:MAX_ANSWERS]:
            groups[answer.instruction].append(answer)
        self._groups = {
            instruction: _Answers(group) for instruction, group in groups.items() if len(group) >= MIN_ANSWERS
        }
        self._all = _Answers(answers[:MAX_ANSWERS]) if len(answers) >= MIN_ANSWERS else None

    def predict(self, instruction: int, num_input_tokens: int, most: int) -> LengthPrediction | None:
        """Of an answer of at most `most` tokens. None if there have been too few answers."""
        answers = self._groups.get(instruction, self._all)
        return answers.predict(num_input_tokens, most) if answers else None


class RecentAnswers:
    """The history of the newest answers, as they come."""

    def __init__(self) -> None:
        self._newest: deque[Answered] = deque(maxlen=MAX_SEEN)  # newest first
        self._num_new = 0
        self._history = AnswerHistory()

    def add(self, answer: Answered) -> None:
        self._newest.appendleft(answer)
        self._num_new += 1

    def predict(self, instruction: int, num_input_tokens: int, most: int) -> LengthPrediction | None:
        """As `AnswerHistory.predict`."""
        if self._num_new >= MIN_ANSWERS:
            self._history, self._num_new = AnswerHistory(list(self._newest)), 0
        return self._history.predict(instruction, num_input_tokens, most)


class _Answers:
    """Answers to one instruction, or all recent ones, sorted by the length of their input."""

    def __init__(self, answers: Iterable[Answered]) -> None:
        table = np.array([answer[1:] for answer in answers], np.float32)
        table = table[np.argsort(table[:, 0], kind="stable")]
        self._inputs, self._lengths, self._ended = table[:, 0], table[:, 1], table[:, 2] > 0

    def predict(self, num_input_tokens: int, most: int) -> LengthPrediction:
        """The distribution of the NEIGHBOURS answers with the nearest ratio of
        input lengths, and of all at the same distance.
        """
        count = min(NEIGHBOURS, len(self._inputs))
        distance = np.abs(np.log((self._inputs + 1) / (num_input_tokens + 1)))
        near = distance <= np.partition(distance, count - 1)[count - 1]
        return observed(self._lengths[near], self._ended[near], most)
