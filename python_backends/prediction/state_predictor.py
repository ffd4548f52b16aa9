"""Predicts lengths from the hidden states at the ends of prompts, with the newest model that the learner has
published.

A thread of its own looks for new versions, so that no stream waits for a disk; a prediction is a dot product.
An error is logged once, and the model before goes on predicting. Used by the scheduler model.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from python_backends.nouns.messages import AtPromptEnd
from python_backends.nouns.request import Floats
from python_backends.prediction.state_model import StateModel
from python_backends.prediction.versions import Learned, Version, current

log = logging.getLogger("gapless.scheduler")

LOOK_EVERY_S = 3.0


class StatePredictor:
    def __init__(self, find_directory: Callable[[], Path]) -> None:
        """`find_directory` is called by the thread: it reads the checkpoint."""
        self._find_directory = find_directory
        self._directory: Path | None = None
        self._known: tuple[Version, StateModel] | None = None  # replaced whole
        self._said: set[str] = set()
        self._closing = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._look_for_ever, name="new versions", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def predict(self, state: Floats, layer: int, most: int) -> AtPromptEnd:
        """Of an answer of at most `most` tokens, from `state` [hidden]."""
        known = self._known
        prediction = known[1].predict(state, layer, most) if known is not None else None
        if known is None or prediction is None or not prediction.is_sane:
            return AtPromptEnd(state, layer)
        return AtPromptEnd(state, layer, prediction, known[0].number)

    def look(self) -> None:
        """Takes a new version, if there is one."""
        try:
            self._directory = self._directory or self._find_directory()
            version = current(self._directory, Learned.STATES)
            if version is None or (self._known is not None and version == self._known[0]):
                return
            self._known = version, StateModel.load(version.path(self._directory))
        except (OSError, ValueError) as error:  # also of a checkpoint, which the instance refuses
            if str(error) not in self._said:
                self._said.add(str(error))
                log.warning("%s; lengths are predicted by what was learned before", error)

    def _look_for_ever(self) -> None:
        while not self._closing.is_set():
            self.look()
            self._closing.wait(LOOK_EVERY_S)
