"""A typed Python client for Gapless, over gRPC. It needs `tritonclient` and imports no code of the server.

In this repository it is the package `client`; `pip install .` installs it as `gapless`. Its imports are
relative.

    from client import Client, user

    with Client("127.0.0.1:8001") as client:
        for piece in client.stream([user("What is the capital of France?")], max_tokens=64):
            print(piece.text, end="", flush=True)

`AsyncClient` is the same for asyncio. All parameters of a request are in `client/parameters.py`. See
docs/client.md.
"""

from .async_client import AsyncClient
from .errors import FailedError, GaplessError, RefusedError, TimedOutError, UnavailableError
from .parameters import Parameters
from .retries import Retries
from .sync_client import Client
from .wire import Message, Piece, Prompt, assistant, system, user

__all__ = [
    "AsyncClient",
    "Client",
    "FailedError",
    "GaplessError",
    "Message",
    "Parameters",
    "Piece",
    "Prompt",
    "RefusedError",
    "Retries",
    "TimedOutError",
    "UnavailableError",
    "assistant",
    "system",
    "user",
]
