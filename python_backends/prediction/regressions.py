"""Predicts lengths from the tokens of prompts, and from hidden states at their ends and while answers are
written, with the newest regressions that the learner has published.

A thread of its own looks for new versions, so that no stream waits for a disk; a prediction is a
product of arrays. An error is logged once, and the version before goes on predicting. Used by the scheduler
model.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from python_backends.nouns.messages import AtStage, LengthAnswer
from python_backends.nouns.request import Floats, Ids, LengthPrediction
from python_backends.nouns.stages import PROMPT_END, TEXT
from python_backends.prediction import token_counts
from python_backends.prediction.stage_models import StageModels
from python_backends.prediction.versions import Learned, Version, current

log = logging.getLogger("gapless.scheduler")

LOOK_EVERY_S = 3.0


class Regressions:
    def __init__(self, find_directory: Callable[[], Path]) -> None:
        """`find_directory` is called by the thread: it reads the checkpoint."""
        self._find_directory = find_directory
        self._directory: Path | None = None
        self._known: tuple[Version, StageModels] | None = None  # replaced whole
        self._told: set[str] = set()
        self._closing = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._look_for_ever, name="new versions", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def predict(self, state: Floats, layer: int, most: int, stage: int = PROMPT_END) -> AtStage:
        """Of an answer of at most `most` tokens, from `state` [hidden] of this stage."""
        return AtStage(stage, state, layer, *self._said(stage, state, layer, most))

    def read(self, buckets: Ids, num_tokens: int, most: int) -> LengthAnswer:
        """Of an answer of at most `most` tokens, from the buckets of its prompt's `num_tokens` tokens."""
        if self._known is None:
            return LengthAnswer()
        numbers = token_counts.numbers_of(buckets, num_tokens)
        return LengthAnswer(*self._said(TEXT, numbers, token_counts.LAYER, most))

    def _said(
        self, stage: int, numbers: Floats, layer: int, most: int
    ) -> tuple[LengthPrediction | None, int]:
        """And the version that said so; 0: none."""
        if self._known is None:
            return None, 0
        version, models = self._known
        prediction = models.predict(stage, numbers, layer, most)
        return (prediction, version.number) if prediction is not None and prediction.is_sane else (None, 0)

    def look(self) -> None:
        """Takes a new version, if there is one."""
        try:
            self._directory = self._directory or self._find_directory()
            version = current(self._directory, Learned.REGRESSIONS)
            if version is None or (self._known is not None and version == self._known[0]):
                return
            self._known = version, StageModels.load(version.path(self._directory))
        except (OSError, ValueError) as error:  # also of a checkpoint, which the instance refuses
            if str(error) not in self._told:
                self._told.add(str(error))
                log.warning("%s; lengths are predicted by what was learned before", error)

    def _look_for_ever(self) -> None:
        while not self._closing.is_set():
            self.look()
            self._closing.wait(LOOK_EVERY_S)
