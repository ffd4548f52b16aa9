"""Ports that no process listens on."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Returns `count` different ones of `address`, an IP address of this host. Another process may take one
    before the caller does.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((address, 0))
        return [int(each.getsockname()[1]) for each in sockets]
