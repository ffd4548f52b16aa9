"""A server's length predictor for the real runs of `scheduling`: the same code in a process of low
priority, within its share of the processors; each call has all open questions. It learns nothing during a
run.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from python_backends.linux.time_slice import stand_back
from python_backends.nouns.request import LengthPrediction, Subject
from python_backends.settings import PredictionSettings

READY_WITHIN_S = 180.0  # the encoder is loaded first
Question = tuple[int, Subject]  # number of the request
Answer = tuple[int, LengthPrediction, bool]  # the last: by the forest, not by history


class ServedPredictor:
    """The predictor's process, seen from the loop, which calls `answers` repeatedly and never waits."""

    def __init__(self, directory: Path) -> None:
        """`directory` has request log and forest. Raises TimeoutError if the encoder can't be loaded."""
        self._ours, theirs = multiprocessing.get_context("spawn").Pipe()
        arguments = (theirs, directory)
        multiprocessing.get_context("spawn").Process(
            target=_serve, args=arguments, name="length predictor", daemon=True
        ).start()
        if not self._ours.poll(READY_WITHIN_S) or self._ours.recv() != []:
            raise TimeoutError(f"the length predictor was not ready within {READY_WITHIN_S:g} s")
        self._is_asked = False
        self.num_asked = 0
        self.num_by_forest = 0

    def answers(self, questions: list[Question]) -> list[tuple[int, LengthPrediction]]:
        """Returns the answers since the last call. If the predictor is free, sends it all `questions` and
        empties the list.
        """
        answered: list[Answer] = []
        if self._is_asked and self._ours.poll():
            answered, self._is_asked = self._ours.recv(), False
        if questions and not self._is_asked:
            self._ours.send(questions)
            self.num_asked += len(questions)
            questions.clear()
            self._is_asked = True
        self.num_by_forest += sum(by_forest for *_, by_forest in answered)
        return [(number, prediction) for number, prediction, _ in answered]


def _serve(theirs: Connection, directory: Path) -> None:
    """The predictor's process. Sends an empty list when the encoder is loaded."""
    from python_backends.prediction.encoder import PACKAGED, SentenceEncoder
    from python_backends.prediction.history import AnswerHistory
    from python_backends.prediction.predictor import PROCESSOR_SHARE, Budget, Predictor
    from python_backends.prediction.request_log import RequestLog, instruction_id

    stand_back()
    settings = PredictionSettings(encoder=PACKAGED)
    budget = Budget(PROCESSOR_SHARE * len(os.sched_getaffinity(0)), time.monotonic)
    predictor = Predictor(settings, directory, lambda: SentenceEncoder(settings.encoder), budget)
    while not any(answer.version for answer in predictor.answer([Subject("", "", 0, 1)])):
        time.sleep(0.2)
    history = AnswerHistory(RequestLog(directory).recent())

    def by_history(asked: Subject) -> LengthPrediction | None:
        return history.predict(instruction_id(asked.instruction), asked.num_input_tokens, asked.max_tokens)

    theirs.send([])
    while True:
        try:
            questions: Sequence[Question] = theirs.recv()
        except EOFError:
            return
        answers = zip(questions, predictor.answer([subject for _, subject in questions]), strict=True)
        theirs.send(
            [
                (number, prediction, told.version > 0)
                for (number, asked), told in answers
                if (prediction := told.prediction or by_history(asked)) is not None
            ]
        )
