"""Predicts lengths from the tokens of prompts, and from the hidden states at their ends, with the newest
regressions that the learner has published.

A thread of its own looks for new versions, so that no stream waits for a disk; a prediction is a dot product.
An error is logged once, and the model before goes on predicting. Used by the scheduler model.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from python_backends.nouns.messages import AtPromptEnd, LengthAnswer
from python_backends.nouns.request import Floats, Ids, LengthPrediction
from python_backends.prediction import token_counts
from python_backends.prediction.state_model import StateModel
from python_backends.prediction.versions import Learned, Version, current

log = logging.getLogger("gapless.scheduler")

LOOK_EVERY_S = 3.0


class Regressions:
    def __init__(self, find_directory: Callable[[], Path]) -> None:
        """`find_directory` is called by the thread: it reads the checkpoint."""
        self._find_directory = find_directory
        self._directory: Path | None = None
        self._known: dict[Learned, tuple[Version, StateModel]] = {}  # each replaced whole
        self._told: set[str] = set()
        self._closing = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._look_for_ever, name="new versions", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def predict(self, state: Floats, layer: int, most: int) -> AtPromptEnd:
        """Of an answer of at most `most` tokens, from `state` [hidden]."""
        return AtPromptEnd(state, layer, *self._said(Learned.STATES, state, layer, most))

    def read(self, buckets: Ids, num_tokens: int, most: int) -> LengthAnswer:
        """Of an answer of at most `most` tokens, from the buckets of its prompt's `num_tokens` tokens."""
        if Learned.TEXTS not in self._known:
            return LengthAnswer()
        numbers = token_counts.numbers_of(buckets, num_tokens)
        return LengthAnswer(*self._said(Learned.TEXTS, numbers, token_counts.LAYER, most))

    def _said(
        self, what: Learned, numbers: Floats, layer: int, most: int
    ) -> tuple[LengthPrediction | None, int]:
        """And the version that said so; 0: none."""
        version, model = self._known.get(what, (None, None))
        prediction = model.predict(numbers, layer, most) if model is not None else None
        if version is None or prediction is None or not prediction.is_sane:
            return None, 0
        return prediction, version.number

    def look(self) -> None:
        """Takes new versions, if there are any."""
        for what in (Learned.STATES, Learned.TEXTS):
            self._look_for(what)

    def _look_for(self, what: Learned) -> None:
        try:
            self._directory = self._directory or self._find_directory()
            version = current(self._directory, what)
            if version is None or (what in self._known and version == self._known[what][0]):
                return
            self._known[what] = version, StateModel.load(version.path(self._directory))
        except (OSError, ValueError) as error:  # also of a checkpoint, which the instance refuses
            if str(error) not in self._told:
                self._told.add(str(error))
                log.warning("%s; lengths are predicted by what was learned before", error)

    def _look_for_ever(self) -> None:
        while not self._closing.is_set():
            self.look()
            self._closing.wait(LOOK_EVERY_S)
