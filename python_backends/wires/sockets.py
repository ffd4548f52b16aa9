"""ZeroMQ sockets in the run directory, the frames that they receive, and a way to end a wait for frames.

Used by the wires of this folder and of `moving`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq

from python_backends.nouns.messages import BadMessageError, Reader
from python_backends.wires.sparse_log import SparseLog

_sparse_log = SparseLog(logging.getLogger("gapless"))

SEND_LIMIT = 100_000  # frames that wait for a peer which doesn't read


class Wake:
    """Ends a poll that watches `fd`, from any thread."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)

    def call(self) -> None:
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)


def poller_of(*sources: zmq.Socket[Any] | int) -> zmq.Poller:
    poller = zmq.Poller()
    for source in sources:
        poller.register(source, zmq.POLLIN)
    return poller


def open_socket(context: zmq.Context[Any], kind: int) -> zmq.Socket[Any]:
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, SEND_LIMIT)
    socket.setsockopt(zmq.RCVHWM, SEND_LIMIT)
    socket.setsockopt(zmq.LINGER, 0)
    return socket


def address(run_directory: Path, name: str) -> str:
    return f"ipc://{run_directory}/{name}.sock"


def received(socket: zmq.Socket[Any], read: Reader, place: int = 0) -> Iterator[tuple[list[bytes], Any]]:
    """Everything that has arrived as (frames, what `read` finds in the one at
    `place`). Frames that are no messages are dropped.
    """
    while int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
            yield frames, read(frames[place])
        except zmq.Again:
            return
        except (BadMessageError, IndexError) as error:
            _sparse_log.warning("dropped", "dropped a frame: %s", error)


def say_unknown(error: BadMessageError) -> None:
    """A message came that is none of ours."""
    _sparse_log.warning("unknown", "a message is passed over: %s", error)
