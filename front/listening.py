"""The socket on which a front process listens."""

from __future__ import annotations

import socket

BACKLOG = 2048


def listen(host: str, port: int, is_shared: bool) -> socket.socket:
    """Returns a listening socket. `is_shared`: other processes listen there as well, and the kernel divides
    the connections among them. Raises OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small pieces at once (TCP_NODELAY) only where the protocol is named
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made
