"""The control socket in the run directory: orders of operators and of the launcher to the scheduler model.

A connection brings one order, a line of JSON. The answers are lines, too: while the order is carried out,
they say several times a second what is missing for it; the last one says that it is done, or refused.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from python_backends.nouns.order import Answer, Order, RefusedOrderError, read_order
from python_backends.wires.run_directory import CONTROL

LONGEST_ORDER = 4096  # bytes
READ_S = 1.0  # by then an order must have come: others wait meanwhile
PAUSE_S = 0.1  # before the next connection is taken, where the host has no file left
SILENT_S = 5.0  # without a line for so long, the scheduler model hangs


class Asked:
    """An order, and the one who waits for its answers."""

    def __init__(self, order: Order, connection: socket.socket) -> None:
        self.order = order
        self._connection = connection

    def say(self, answer: Answer) -> bool:
        """Never waits. Returns whether another answer should follow: no longer if the asking one has gone."""
        try:
            self._connection.sendall(json.dumps(answer).encode() + b"\n")
            if "missing" in answer:
                return True
        except OSError:
            pass
        self.close()
        return False

    def close(self) -> None:
        self._connection.close()


class ControlEnd:
    """The scheduler model's end. Its thread only reads orders; one other thread takes and answers them."""

    def __init__(self, run_directory: Path, wake: Callable[[], None]) -> None:
        """`wake` is called when there is an order to take. Raises OSError if there can't be a socket."""
        path = run_directory / CONTROL
        path.unlink(missing_ok=True)  # of an earlier scheduler model
        self._wake = wake
        self._asked: SimpleQueue[Asked] = SimpleQueue()
        self._closing = False
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        path.chmod(0o600)
        self._listening.listen()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    def take(self) -> list[Asked]:
        """The orders that have come since the last time."""
        return [self._asked.get_nowait() for _ in range(self._asked.qsize())]

    def close(self) -> None:
        """Orders that were not taken get no answer."""
        self._closing = True
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        for each in self.take():
            each.close()

    def _run(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                time.sleep(PAUSE_S)
                continue
            try:
                self._read(connection)
            except (OSError, RefusedOrderError) as error:
                Asked(Order("status"), connection).say({"refused": str(error)})

    def _read(self, connection: socket.socket) -> None:
        order = read_order(_line(connection))
        connection.setblocking(False)
        self._asked.put(Asked(order, connection))
        self._wake()


def _line(connection: socket.socket) -> bytes:
    """The first line that comes; at most LONGEST_ORDER bytes. Raises TimeoutError."""
    got, end_s = b"", time.monotonic() + READ_S
    while b"\n" not in got and len(got) < LONGEST_ORDER:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the order has not come within {READ_S:.0f} s")
        connection.settimeout(left_s)
        more = connection.recv(LONGEST_ORDER - len(got))
        if not more:
            break
        got += more
    return got.partition(b"\n")[0]


def ask(
    run_directory: Path,
    order: Order,
    longest_s: float = SILENT_S,
    show: Callable[[str], object] = lambda _: None,
) -> Any:
    """Returns the result. `show` gets each line that says what is missing. Raises RefusedOrderError, also if
    this takes longer than `longest_s`; ConnectionError or FileNotFoundError if there is no scheduler model,
    and another OSError if it hangs.
    """
    end_s = time.monotonic() + longest_s
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(min(SILENT_S, longest_s))
        connection.connect(str(run_directory / CONTROL))
        connection.sendall(json.dumps(asdict(order)).encode() + b"\n")
        with connection.makefile("rb") as lines:
            for line in lines:
                answer: Answer = json.loads(line)
                if "done" in answer:
                    return answer["done"]
                if "refused" in answer:
                    raise RefusedOrderError(answer["refused"])
                show(answer["missing"])
                if time.monotonic() >= end_s:
                    raise RefusedOrderError(f"{answer['missing']} after {longest_s:.0f} s; the order stays")
    raise ConnectionResetError("it has ended")
