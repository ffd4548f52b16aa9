"""Bounds the connections to tritonserver by the files that it may have open: each connection is one.

tritonserver has no bound of its own. Without files left it asks for the next connection without a pause,
writes a line for each try, and can't start a model's process again. So the launcher refuses connections while
few files are left: it takes them from the listening sockets, which it shares with tritonserver. Called by the
server.
"""

from __future__ import annotations

import contextlib
import json
import logging
import select
import socket
import time
from collections.abc import Callable

import psutil

from python_backends.linux import open_files

log = logging.getLogger("gapless")

USUAL_LIMIT = 1 << 16  # more is only asked for where streams.max_open needs it
OF_ITS_OWN = 128  # files that tritonserver and its models have open without connections
LOOK_EVERY_S = 0.2
SAY_EVERY_S = 60.0
_BODY = json.dumps({"error": "too many open connections"})
REFUSAL = (
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    f"Connection: close\r\nContent-Length: {len(_BODY)}\r\n\r\n{_BODY}"
).encode()


def allow_files(max_open: int) -> int:
    """Raises the limit of open files of this process and of those that it starts. Returns it. Warns if
    `max_open` requests, each on a connection of its own, would not fit.
    """
    limit = open_files.raise_limit(max(USUAL_LIMIT, 2 * max_open + OF_ITS_OWN))
    fitting = limit - kept_free(limit) - OF_ITS_OWN
    if fitting < max_open:
        log.warning(
            "only %d files may be open (ulimit -Hn): about %d connections fit, fewer than"
            " streams.max_open = %d; more are refused",
            limit,
            max(0, fitting),
            max_open,
        )
    return limit


def kept_free(limit: int) -> int:
    """Returns how many files are kept from connections: a model that is started again needs some."""
    return min(64, limit // 8)


class ConnectionBound:
    """Refuses connections to one tritonserver process."""

    def __init__(self, pid: int, ports: dict[int, bytes], limit: int) -> None:
        """`ports`: what is sent on each before a connection is closed."""
        self._pid = pid
        self._ports = ports
        self._most = limit - kept_free(limit)
        self._listening: dict[int, bytes] = {}  # the server's descriptors
        self._refused = 0
        self._said_s = 0.0

    def run(self) -> None:
        """Goes on until that process ends."""
        while True:
            try:
                is_full = open_files.count(self._pid) >= self._most
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                return
            except OSError:  # the launcher itself has no files or memory left for the moment
                is_full = False
            if is_full:
                self._refuse()
                self._say()
            else:
                time.sleep(LOOK_EVERY_S)

    def _refuse(self) -> None:
        """Refuses what comes within LOOK_EVERY_S."""
        try:
            self._listening = self._listening or self._find()
            with contextlib.ExitStack() as stack:
                shared = {
                    stack.enter_context(open_files.borrowed(self._pid, descriptor)): reply
                    for descriptor, reply in self._listening.items()
                }
                self._refused += refuse(shared, LOOK_EVERY_S)
        except (OSError, psutil.Error):  # it has ended; or the container forbids it: then it is only logged
            time.sleep(LOOK_EVERY_S)

    def _find(self) -> dict[int, bytes]:
        found = psutil.Process(self._pid).net_connections("tcp")
        return {
            each.fd: self._ports[each.laddr.port]
            for each in found
            if each.status == psutil.CONN_LISTEN and each.laddr.port in self._ports
        }

    def _say(self) -> None:
        if time.monotonic() - self._said_s < SAY_EVERY_S and self._said_s:
            return
        log.warning(
            "tritonserver has nearly as many files open as it may (ulimit -Hn): %d connections were refused",
            self._refused,
        )
        self._said_s, self._refused = time.monotonic(), 0


def refuse(listening: dict[int, bytes], wait_s: float, now_s: Callable[[], float] = time.monotonic) -> int:
    """Takes connections from listening sockets for `wait_s`, sends each its reply and closes it. Returns how
    many.
    """
    end_s, num_refused = now_s() + wait_s, 0
    waiting = select.poll()
    for descriptor in listening:
        waiting.register(descriptor, select.POLLIN)
    while (left_s := end_s - now_s()) > 0:
        for descriptor, _ in waiting.poll(left_s * 1000):
            num_refused += _refuse_one(descriptor, listening[descriptor])
    return num_refused


def _refuse_one(descriptor: int, reply: bytes) -> int:
    with socket.socket(fileno=descriptor) as listener:
        try:
            connection, _ = listener.accept()
        except OSError:  # tritonserver took it, or its client has left
            return 0
        finally:
            listener.detach()  # the descriptor stays open
    with connection, contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.send(reply)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1 << 16)  # what is left unread would make the reply vanish
    return 1
