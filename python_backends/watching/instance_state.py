"""The record that an instance writes on the board for the launcher and the tokenizer: its state, its limits,
its beats.
"""

from __future__ import annotations

import json
import os
from enum import Enum
from typing import Any

from python_backends.nouns.request import ModelLimits
from python_backends.watching.board import Board, instance_name

# files in the run directory by which the launcher speaks to the Triton models
DRAINING = "draining"  # new requests are refused
CLOSING = "closing"  # whatever is still open ends now
KEY = "key"  # only a process that can read it may write messages of ours


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class InstanceRecord:
    """Of the instance with this number; its process writes, and the launcher while there is none."""

    def __init__(self, board: Board, number: int) -> None:
        self._board = board
        self._name = instance_name(number)

    def write_starting(self) -> None:
        """What an earlier life could take stays readable: the same settings give the same limits."""
        self.write(State.STARTING, self.read()[1])

    def write(self, state: State, limits: ModelLimits | None = None) -> None:
        said = {"state": state.value, "pid": os.getpid(), "limits": limits and limits.as_dict()}
        self._board.write(self._name, json.dumps(said).encode())

    def beat(self) -> None:
        self._board.beat(self._name)

    def sign(self) -> int:
        """Changes with every beat."""
        return self._board.sign(self._name)

    def read(self) -> tuple[State, ModelLimits | None]:
        """DEAD if it has said nothing."""
        said = self._board.read(self._name)
        if not said:
            return State.DEAD, None
        written = json.loads(said)
        return State(written["state"]), written["limits"] and _limits(written["limits"])


def _limits(written: dict[str, Any]) -> ModelLimits:
    """JSON has no tuples."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in written.items()
    }
    return ModelLimits(**values)


def limits_of_any(board: Board, num_instances: int) -> ModelLimits | None:
    """What an instance can take, whichever has said so: all have the same settings. None: none has."""
    said = (InstanceRecord(board, number).read()[1] for number in range(num_instances))
    return next((limits for limits in said if limits is not None), None)
