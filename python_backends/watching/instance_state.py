"""The record that an instance writes on the board for the launcher and the tokenizer: state, limits and
beats.
"""

from __future__ import annotations

import json
import os
from enum import Enum
from typing import Any

from python_backends.nouns.request import ModelLimits
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

    def write_starting(self) -> None:
        """Writes STARTING. The limits of an earlier process stay: the same settings give the same limits."""
        self.write(State.STARTING, self.read()[1])

    def write(self, state: State, limits: ModelLimits | None = None) -> None:
        said = {"state": state.value, "pid": os.getpid(), "limits": limits and limits.as_dict()}
        self._board.write(self._name, json.dumps(said).encode())

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
        return State(written["state"]), written["limits"] and _limits(written["limits"])


def _limits(written: dict[str, Any]) -> ModelLimits:
    """Makes lists tuples, which JSON does not have."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in written.items()
    }
    return ModelLimits(**values)


def limits_of_any(board: Board, num_instances: int) -> ModelLimits | None:
    """Returns the limits of the first instance that has written them, or None. All have the same settings."""
    said = (InstanceRecord(board, number).read()[1] for number in range(num_instances))
    return next((limits for limits in said if limits is not None), None)
