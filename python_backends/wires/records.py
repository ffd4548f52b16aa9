"""The wire from the scheduler model to the learner: what has ended.

Tested in tests/server/test_predictor.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import zmq

from python_backends.nouns.messages import AnswerRecord, pack, reader
from python_backends.wires.sockets import address, open_socket, received

MAX_UNHEARD = 4096  # frames that wait for the learner
READ = reader(tuple[AnswerRecord, ...])


class RecordsEnd:
    """The scheduler model's end: sends the learner a record of each answer that has ended. Records are
    dropped if the learner does not listen for long.

    One thread uses it.
    """

    def __init__(self, run_directory: Path) -> None:
        self._context = zmq.Context()
        self._socket = open_socket(self._context, zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, MAX_UNHEARD)
        self._socket.connect(address(run_directory, "records"))

    def send(self, records: Sequence[AnswerRecord]) -> None:
        """Never waits."""
        try:
            if records:
                self._socket.send(pack(tuple(records)), zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        self._context.destroy(linger=0)


class LearnerEnd:
    """The learner's end: receives a record of every answer that has ended."""

    def __init__(self, run_directory: Path) -> None:
        self._context = zmq.Context()
        self._socket = open_socket(self._context, zmq.PULL)
        self._socket.bind(address(run_directory, "records"))

    def receive(self, timeout_s: float) -> list[AnswerRecord]:
        """Waits for the first ones."""
        self._socket.poll(max(0, math.ceil(timeout_s * 1000)))
        return [record for _, records in received(self._socket, READ) for record in records]

    def close(self) -> None:
        self._context.destroy(linger=0)
