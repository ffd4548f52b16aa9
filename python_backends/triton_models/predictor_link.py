"""Asks the length predictor from a thread of its own, so that no stream waits: one call at a time, with all
that is to be asked.

While a call is out, further questions wait with the streams thread, which gives them when this one is free
again. A predictor that fails is left alone for a while. The streams thread uses all of this; only
`_ask_for_ever` runs in parallel.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

import triton_python_backend_utils as pb_utils

from python_backends.nouns.messages import LengthAnswer, reader
from python_backends.nouns.request import Subject
from python_backends.triton_models.tensors import Blobs

log = logging.getLogger("gapless.scheduler")

ANSWERS = reader(tuple[LengthAnswer, ...])
REST_S = 5.0  # after a failure
SLOW_S = 10.0

Question = tuple[int, Subject]


class PredictorLink:
    def __init__(self, blobs: Blobs, wake: Callable[[], None]) -> None:
        self._blobs = blobs
        self._wake = wake
        self._questions: SimpleQueue[list[Question]] = SimpleQueue()
        self._answers: SimpleQueue[list[tuple[int, LengthAnswer]]] = SimpleQueue()
        self._asked_s = 0.0  # 0: nothing is out
        self._resting_until_s = 0.0
        self._has_complained = False
        threading.Thread(target=self._ask_for_ever, name="predictor link", daemon=True).start()

    @property
    def is_free(self) -> bool:
        """Takes questions."""
        return not self._asked_s and time.monotonic() >= self._resting_until_s

    def ask(self, questions: list[Question]) -> None:
        if questions:
            self._asked_s = time.monotonic()
            self._questions.put(questions)

    def take(self) -> list[tuple[int, LengthAnswer]]:
        """What has been answered; never waits. Says once if the predictor keeps us waiting."""
        try:
            answers = self._answers.get_nowait()
        except Empty:
            if self._asked_s and time.monotonic() - self._asked_s > SLOW_S:
                self.complain(f"it has not answered for {SLOW_S:.0f} s")
            return []
        self._asked_s = 0.0
        return answers

    def complain(self, why: str) -> None:
        """Logs it once; serving goes on as if there were no predictor."""
        if not self._has_complained:
            self._has_complained = True
            log.warning(
                "the length predictor fails (%s); serving goes on without its predictions, and says so only"
                " once",
                why,
            )

    def _ask_for_ever(self) -> None:
        while True:
            questions = self._questions.get()
            try:
                answers = self._call(questions)
            except Exception as error:  # whatever it is: the streams go on
                answers = [(number, LengthAnswer()) for number, _ in questions]
                self._resting_until_s = time.monotonic() + REST_S
                self.complain(str(error))
            self._answers.put(answers)
            self._wake()

    def _call(self, questions: list[Question]) -> list[tuple[int, LengthAnswer]]:
        subjects = self._blobs.tensor("subjects", tuple(subject for _, subject in questions))
        request = pb_utils.InferenceRequest(
            model_name="length_predictor", requested_output_names=["length_answers"], inputs=[subjects]
        )
        response = request.exec()
        if response.has_error():
            raise RuntimeError(response.error().message())
        answers = self._blobs.opened(pb_utils.get_output_tensor_by_name(response, "length_answers"), ANSWERS)
        return list(zip((number for number, _ in questions), answers, strict=True))
