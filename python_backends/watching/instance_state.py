"""The record that an instance writes on the board for the launcher and the tokenizer: state, limits and
beats.
"""

from __future__ import annotations

import json
import logging
import os
from enum import Enum

from python_backends.nouns.request import AdapterVersion, ModelLimits
from python_backends.watching.board import MOST_BYTES, Board, instance_name

log = logging.getLogger("gapless.instance")

LONG_STEP_S = 1.0  # shorter ones are not written


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"


class InstanceRecord:
    """The record of the instance with this number. Its process writes it; the launcher does while there is
    none.
    """

    def __init__(self, board: Board, number: int) -> None:
        self._board = board
        self._name = instance_name(number)
        self._longest_step_s = 0.0  # as this process wrote it

    def write(self, state: State, limits: ModelLimits | None = None) -> None:
        """A record holds some 9,500 adapters. Of more, only the first are written."""
        text, adapters = self._text(state, limits), () if limits is None else limits.adapters
        num_written = len(adapters)
        while limits is not None and num_written and len(text) > MOST_BYTES:
            num_written = num_written * MOST_BYTES // len(text)  # fewer than before
            text = self._text(state, limits.changed(adapters=adapters[:num_written]))
        if num_written < len(adapters):
            log.warning("%d of %d adapters are not served", len(adapters) - num_written, len(adapters))
        self._board.write(self._name, text)

    def write_limits(self, limits: ModelLimits) -> None:
        """Writes the limits. The state stays."""
        self.write(self.read()[0], limits)

    def write_on(self, state: State) -> None:
        """Writes the state. The limits stay, also those of an earlier process: the same settings give the
        same limits.
        """
        self.write(state, self.read()[1])

    def beat(self, longest_step_s: float = 0.0) -> None:
        """Of steps that take seconds the longest of the latest is written: see `longest_silence_s`."""
        told_s = longest_step_s if longest_step_s >= LONG_STEP_S else 0.0
        if told_s > self._longest_step_s or told_s < self._longest_step_s / 2:
            self._longest_step_s = told_s
            self.write(*self.read())
        self._board.beat(self._name)

    def longest_step_s(self) -> float:
        """Returns what its process has written last."""
        said = self._board.read(self._name)
        return float(json.loads(said)["longest_step_s"]) if said else 0.0

    def sign(self) -> int:
        """Returns a number that changes with every beat."""
        return self._board.sign(self._name)

    def read(self) -> tuple[State, ModelLimits | None]:
        """Returns state and limits; DEAD if there is no record."""
        said = self._board.read(self._name)
        if not said:
            return State.DEAD, None
        written = json.loads(said)
        return State(written["state"]), written["limits"] and ModelLimits.from_plain(written["limits"])

    def _text(self, state: State, limits: ModelLimits | None) -> bytes:
        said = {
            "state": state.value,
            "pid": os.getpid(),
            "limits": limits and limits.plain(),
            "longest_step_s": self._longest_step_s,
        }
        return json.dumps(said).encode()


def limits_of_any(board: Board, num_instances: int) -> ModelLimits | None:
    """Returns the limits of the first instance that has written them, or None. All have the same settings;
    one that is ready goes first, because its list of adapters is the newest.
    """
    said = [InstanceRecord(board, number).read() for number in range(num_instances)]
    said.sort(key=lambda each: each[0] is not State.READY)
    return next((limits for _, limits in said if limits is not None), None)


class AdapterList:
    """The adapters that can be asked for at present, as the instances say."""

    def __init__(self, board: Board, num_instances: int) -> None:
        self._board = board
        self._num_instances = num_instances
        self._signs: list[int] = []  # at the last look
        self._texts: list[bytes] = []  # that `_adapters` was read from
        self._adapters: tuple[AdapterVersion, ...] = ()

    def read(self) -> tuple[AdapterVersion, ...]:
        """Reads the records only after a sign of life, and parses them only if one has changed."""
        names = [instance_name(number) for number in range(self._num_instances)]
        signs = [self._board.sign(name) for name in names]
        if signs != self._signs:
            self._signs = signs  # older than the texts, which are then read again after the next beat
            self._look([self._board.read(name) for name in names])
        return self._adapters

    def _look(self, texts: list[bytes]) -> None:
        if texts != self._texts:
            limits = limits_of_any(self._board, self._num_instances)
            if limits is not None:
                self._texts, self._adapters = texts, limits.adapters
