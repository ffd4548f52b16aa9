"""Predicts lengths by the forest, within a budget of processor time: if there is time to encode the text.

Used by the `length_predictor` model, one thread. The encoder is loaded in a thread of its own when enough
answers are logged to learn from, or when there is a forest, so that a server with few requests never loads
it. New versions of the forest are looked for every few seconds. An error is logged once; it and what there is
no time for leave answers without a prediction.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from python_backends.nouns.messages import LengthAnswer
from python_backends.nouns.request import Floats, Subject
from python_backends.prediction.encoder import CachedEncoder, Encoder
from python_backends.prediction.features import features
from python_backends.prediction.forest import Forest, ForestError
from python_backends.prediction.request_log import FILE, RequestLog, instruction_id
from python_backends.prediction.versions import Version, current
from python_backends.settings import PredictionSettings
from python_backends.settings.sections.prediction import NO_ENCODER

log = logging.getLogger("gapless.length_predictor")

LOOK_EVERY_S = 3.0
ENCODER_FROM = 200  # logged answers: a server that is only tried never loads the encoder's 400 MB
PROCESSOR_SHARE = 0.03  # of the machine's, and at most one of them, for encoding; the rest is the requests'
MAX_INSTRUCTIONS, MAX_INPUTS = 256, 2048  # remembered embeddings, 1.5 KB each with the default encoder
FIRST_COST_S = 0.02  # assumed cost of encoding a text, until it is measured
MAX_SAVED_S = 2.0  # seconds of idle time whose budget may be spent at once


class Budget:
    """How much processor time may still be spent: an allowance that grows with time, up to a limit."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        """`share` of one processor; `clock` in seconds."""
        self._share = min(share, 1.0)
        self._clock = clock
        self._seen_s = clock()
        self._left_s = self.most_s

    @property
    def most_s(self) -> float:
        return self._share * MAX_SAVED_S

    def affords(self, cost_s: float) -> bool:
        now_s = self._clock()
        self._left_s = min(self.most_s, self._left_s + (now_s - self._seen_s) * self._share)
        self._seen_s = now_s
        return self._share > 0 and cost_s <= self._left_s

    def spend(self, cost_s: float) -> None:
        """The allowance may go below zero; it then has to grow back first."""
        self._left_s -= cost_s


class Predictor:
    def __init__(
        self,
        settings: PredictionSettings,
        directory: Path,
        load: Callable[[], Encoder],
        budget: Budget,
        clock: Callable[[], float] = time.monotonic,
        encoder_from: int = ENCODER_FROM,
    ) -> None:
        """`load` returns the encoder. It is called in another thread when `encoder_from` answers are logged,
        and may raise.
        """
        self._settings = settings
        self._directory = directory
        self._load = load
        self._budget = budget
        self._clock = clock
        self._encoder_from = encoder_from
        self._looked_s = float("-inf")
        self._version: Version | None = None
        self._forest: Forest | None = None
        self._instructions: CachedEncoder | None = None
        self._inputs: CachedEncoder | None = None
        self._loading: threading.Thread | None = None
        self._cost_s = FIRST_COST_S
        self._said: set[str] = set()

    def answer(self, subjects: Sequence[Subject]) -> list[LengthAnswer]:
        """One answer for each of `subjects`, in order."""
        if self._clock() - self._looked_s >= LOOK_EVERY_S:
            self._looked_s, started_s = self._clock(), time.thread_time()
            self._look()
            self._budget.spend(time.thread_time() - started_s)
        made = self._features(subjects)
        name = self._encoder_name
        answers = {place: LengthAnswer(None, 0, features, name) for place, features in made.items()}
        answers |= self._by_forest(subjects, made)
        return [answers.get(place, LengthAnswer()) for place in range(len(subjects))]

    def _by_forest(self, subjects: Sequence[Subject], made: dict[int, Floats]) -> dict[int, LengthAnswer]:
        if (
            not made
            or self._forest is None
            or self._version is None
            or self._version.encoder != self._encoder_name
        ):
            return {}
        places = list(made)
        chosen = [subjects[place] for place in places]
        ids = np.array([instruction_id(each.instruction, each.adapter) for each in chosen], np.uint64)
        most = [each.max_tokens for each in chosen]
        predictions = self._forest.predict(np.stack([made[place] for place in places]), ids, most)
        return {
            place: LengthAnswer(prediction, self._version.number, made[place], self._encoder_name)
            for place, prediction in zip(places, predictions, strict=True)
        }

    # --- features, within the budget

    @property
    def _encoder_name(self) -> str:
        return self._inputs.name if self._inputs else ""

    def _features(self, subjects: Sequence[Subject]) -> dict[int, Floats]:
        """Features by place in `subjects`; those beyond the budget are missing."""
        if self._instructions is None or self._inputs is None:
            return {}
        chosen = self._affordable(subjects)
        if not chosen:
            return {}
        started_s = time.thread_time()
        num_fresh = len(self._to_encode([subjects[place] for place in chosen]))
        instructions = self._instructions.encode([subjects[place].instruction for place in chosen])
        inputs = self._inputs.encode([subjects[place].user_input for place in chosen])
        made = features(
            instructions, inputs, np.array([subjects[place].num_input_tokens for place in chosen])
        )
        spent_s = time.thread_time() - started_s
        self._budget.spend(spent_s)
        if num_fresh:
            self._cost_s += 0.2 * (spent_s / num_fresh - self._cost_s)
        return dict(zip(chosen, made, strict=True))

    def _affordable(self, subjects: Sequence[Subject]) -> list[int]:
        """Places in `subjects`. A full budget affords the first one, whatever it costs: a text that is
        believed to cost more than can be saved is measured again.
        """
        chosen: list[int] = []
        to_encode: set[tuple[bool, str]] = set()
        for place, subject in enumerate(subjects):
            needed = self._to_encode([subject])
            cost_s = len(to_encode | needed) * self._cost_s
            is_first = not to_encode
            if needed <= to_encode or self._budget.affords(
                min(cost_s, self._budget.most_s) if is_first else cost_s
            ):
                to_encode |= needed
                chosen.append(place)
        return chosen

    def _to_encode(self, subjects: Sequence[Subject]) -> set[tuple[bool, str]]:
        """(is an instruction, text) of what is not remembered."""
        assert self._instructions is not None
        assert self._inputs is not None
        instructions = {(True, each.instruction) for each in subjects}
        inputs = {(False, each.user_input) for each in subjects}
        return {each for each in instructions if not self._instructions.knows(each[1])} | {
            each for each in inputs if not self._inputs.knows(each[1])
        }

    # --- new versions, and whether there is something to learn from

    def _look(self) -> None:
        for look in (self._look_at_log, self._look_at_versions):
            try:
                look()
            except (OSError, sqlite3.Error, ForestError) as error:
                self._say_once(f"{error}; going on with what is known")

    def _look_at_log(self) -> None:
        """The log is opened each time: the learner may have put it aside and begun a new one."""
        if self._loading is not None or not (self._directory / FILE).exists():
            return
        with closing(RequestLog(self._directory)) as known:
            if known.num_answers() >= self._encoder_from:
                self._start_loading()

    def _look_at_versions(self) -> None:
        version = current(self._directory)
        if version is None or version == self._version:
            return
        self._forest, self._version = Forest.load(version.path(self._directory)), version
        self._start_loading()

    def _start_loading(self) -> None:
        if self._loading is None and self._settings.encoder != NO_ENCODER:
            self._loading = threading.Thread(target=self._load_encoder, name="encoder", daemon=True)
            self._loading.start()

    def _load_encoder(self) -> None:
        try:
            encoder = self._load()
        except Exception as error:
            self._say_once(f"no encoder, so no length is predicted from texts: {error}")
            return
        self._instructions = CachedEncoder(encoder, MAX_INSTRUCTIONS)
        self._inputs = CachedEncoder(encoder, MAX_INPUTS)

    def _say_once(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning("%s", what)
