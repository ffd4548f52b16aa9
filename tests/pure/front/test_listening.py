"""The socket on which the front listens."""

from __future__ import annotations

import asyncio
import socket

import pytest

from front.listening import listen


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_small_pieces_are_sent_at_once(host: str) -> None:
    """With Nagle's algorithm, a piece behind another one waits for the client's delayed confirmation."""

    async def accepted_option() -> int:
        came: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            given = writer.get_extra_info("socket")
            came.set_result(given.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        try:
            listening = listen(host, 0, is_shared=False)
        except OSError:
            pytest.skip(f"{host} can't be listened on here")
        async with await asyncio.start_server(accept, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            found = await came
            writer.close()
        return found

    assert asyncio.run(accepted_option())
