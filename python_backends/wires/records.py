"""The wire from the scheduler model to the learner: what has ended."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import zmq

from python_backends.nouns.messages import AnswerRecord, pack, reader
from python_backends.wires.sockets import address, open_socket, received

MOST_BYTES = 16 << 20  # of records that wait for the learner
MOST_IN_SOCKET = 16  # frames that ZeroMQ keeps besides
READ = reader(tuple[AnswerRecord, ...])


class RecordsEnd:
    """The scheduler model's end: sends the learner a record of each answer that has ended. The oldest records
    are dropped if the learner does not listen for long.

    One thread uses it.
    """

    def __init__(self, run_directory: Path) -> None:
        self._context = zmq.Context()
        self._socket = open_socket(self._context, zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, MOST_IN_SOCKET)
        self._socket.connect(address(run_directory, "records"))
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0  # of these

    def send(self, records: Sequence[AnswerRecord]) -> None:
        """These, and those that wait; called again and again. Never waits."""
        if records:
            self._waiting.append(pack(tuple(records)))
            self._num_bytes += len(self._waiting[-1])
        while self._waiting and self._try_to_send(self._waiting[0]):
            self._num_bytes -= len(self._waiting.popleft())
        while self._num_bytes > MOST_BYTES:
            self._num_bytes -= len(self._waiting.popleft())

    def _try_to_send(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

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
