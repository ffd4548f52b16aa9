"""The `length_predictor` model: what requests are about, to how long their answers may be. Only the scheduler
model may ask.

It lives on what others leave: low priority, no right to interrupt anybody, one thread, and a share of the
processors. Whatever fails here is answered with an error, and no request has waited for it.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from itertools import islice
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends.linux.time_slice import stand_back
from python_backends.nouns.messages import LengthAnswer, reader
from python_backends.nouns.request import Subject
from python_backends.prediction.encoder import SentenceEncoder
from python_backends.prediction.place import directory_of
from python_backends.prediction.predictor import PROCESSOR_SHARE, Budget, Predictor
from python_backends.triton_models.life import LONGEST_PREDICTION_S, Life, watched
from python_backends.triton_models.tensors import (
    REFUSED,
    Blobs,
    ForgedError,
    effective_settings,
    failure,
    hide_shared_memory,
)

log = logging.getLogger("gapless.length_predictor")

SUBJECTS = reader(tuple[Subject, ...])
GRACE_S = 0.5


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        hide_shared_memory()
        stand_back()
        settings = effective_settings()
        asked = settings.prediction
        budget = Budget(PROCESSOR_SHARE * len(os.sched_getaffinity(0)), time.monotonic)
        self._blobs = Blobs()
        self._predictor = Predictor(
            asked, directory_of(settings), lambda: SentenceEncoder(asked.encoder), budget
        )
        self.life = Life("length_predictor", LONGEST_PREDICTION_S)

    @watched
    def execute(self, requests: list[Any]) -> list[Any]:
        """Each asks for any number of subjects; all are encoded together."""
        asked = [self._subjects(request) for request in requests]
        try:
            answers = iter(
                self._predictor.answer(
                    [subject for each in asked if isinstance(each, tuple) for subject in each]
                )
            )
        except Exception as error:
            log.exception("lengths could not be predicted")
            return [failure(f"lengths could not be predicted: {error}") for _ in requests]
        return [
            self._response(tuple(islice(answers, len(each)))) if isinstance(each, tuple) else each
            for each in asked
        ]

    def finalize(self) -> None:
        """An interpreter with torch in it takes seconds to end at this priority, and the server waits for
        three: the kernel ends it.
        """
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    def _subjects(self, request: Any) -> Any:
        """A tuple of them, or the response to a caller that may not ask."""
        try:
            return self._blobs.message(request, "subjects", SUBJECTS)
        except ForgedError as error:
            return failure(str(error), REFUSED)

    def _response(self, answers: tuple[LengthAnswer, ...]) -> Any:
        return pb_utils.InferenceResponse([self._blobs.tensor("length_answers", answers)])
