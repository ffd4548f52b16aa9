"""The record that an instance writes on the board for the launcher and the tokenizer: state, limits and
beats. Tested in tests/pure/test_board.py.
"""

from __future__ import annotations

import json
import os
from enum import Enum

from python_backends.nouns.request import AdapterVersion, ModelLimits
from python_backends.watching.board import Board, instance_name

# files in the run directory with which the launcher informs the Triton models
DRAINING = "draining"  # new requests are refused
CLOSING = "closing"  # requests that are still open end now
KEY = "key"  # signs messages between processes: only a process that can read it may send them


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class InstanceRecord:
    """The record of the instance with this number. Its process writes it; the launcher does while there is
    none.
    """

    def __init__(self, board: Board, number: int) -> None:
        self._board = board
        self._name = instance_name(number)

    def write(self, state: State, limits: ModelLimits | None = None) -> None:
        said = {"state": state.value, "pid": os.getpid(), "limits": limits and limits.plain()}
        self._board.write(self._name, json.dumps(said).encode())

    def write_limits(self, limits: ModelLimits) -> None:
        """Writes the limits. The state stays."""
        self.write(self.read()[0], limits)

    def write_on(self, state: State) -> None:
        """Writes the state. The limits stay, also those of an earlier process: the same settings give the
        same limits.
        """
        self.write(state, self.read()[1])

    def beat(self) -> None:
        self._board.beat(self._name)

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
        self._texts: list[bytes] = []  # that `_adapters` was read from
        self._adapters: tuple[AdapterVersion, ...] = ()

    def read(self) -> tuple[AdapterVersion, ...]:
        """Parses the records only if one has changed."""
        texts = [self._board.read(instance_name(number)) for number in range(self._num_instances)]
        if texts != self._texts:
            limits = limits_of_any(self._board, self._num_instances)
            if limits is not None:
                self._texts, self._adapters = texts, limits.adapters
        return self._adapters
