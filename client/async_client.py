"""The client for asyncio: like `Client`, with `async for` and `await`. One `AsyncClient` serves any number of
tasks over one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from .channel import channel_options
from .errors import FailedError, GaplessError, UnavailableError, from_grpc
from .parameters import Parameters
from .retries import Call, Retries
from .wire import Piece, Prompt, deadline_us, read_piece, request_message, shorten, stream_call


class AsyncClient:
    """Must be made inside a running event loop. `timeout_s` limits a whole call, with all attempts; None: no
    limit.
    """

    def __init__(
        self, url: str = "127.0.0.1:8001", *, timeout_s: float | None = None, retries: Retries | None = None
    ) -> None:
        self._url = url
        self._channel = grpc.aio.insecure_channel(url, channel_options(url))
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._ask = stream_call(self._channel)
        self._timeout_s = timeout_s
        self._retries = retries or Retries()
        self._sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    def stream(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> AsyncGenerator[Piece, None]:
        """Yields pieces of the answer when they arrive; the last one has a `finish_reason`.

        The request is sent when the first piece is awaited. Cancelling the task, closing the iterator
        (`aclose`) or leaving the loop cancels it. Raises GaplessError.
        """
        return self._pieces(request_message(prompt, stream=True, parameters=parameters))

    async def generate(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> Piece:
        """Returns the whole answer in one piece. Raises GaplessError."""
        answers = [
            piece
            async for piece in self._pieces(request_message(prompt, stream=False, parameters=parameters))
        ]
        return answers[0]

    async def is_ready(self) -> bool:
        try:
            return bool((await self._answer(self._stub.ServerReady, service_pb2.ServerReadyRequest())).ready)
        except GaplessError:
            return False

    async def server_version(self) -> str:
        """Returns name and version, such as `triton 2.51.0`. Raises GaplessError."""
        said = await self._answer(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest())
        return f"{said.name} {said.version}"

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _answer(self, ask: Any, request: Any) -> Any:
        """Raises GaplessError."""
        with self._errors():
            return await ask(request, timeout=5)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises GaplessError in place of gRPC's errors."""
        try:
            yield
        except (grpc.RpcError, grpc.aio.UsageError) as error:
            raise from_grpc(error, self._url) from error
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise from_grpc(error, self._url) from error

    async def _pieces(self, request: Any, **options: Any) -> AsyncGenerator[Piece, None]:
        """`options`: of each call of gRPC."""
        tries, limit_us = Call(self._retries, self._timeout_s), deadline_us(request)
        while True:
            with self._errors():
                call = self._ask(request, timeout=tries.left_s(), **options)
            try:
                with self._errors():
                    async for response in call:
                        piece = await _read(response, call)
                        if piece.says_something:  # an empty chunk only shows that the connection is alive
                            tries.has_begun = True
                            yield piece
                        if piece.finish_reason:
                            return
                raise FailedError("the stream ended before the answer was complete")
            except UnavailableError as error:
                pause_s = tries.pause_s(error)
            finally:
                call.cancel()
            await self._sleep(pause_s)
            shorten(request, limit_us, tries.spent_s())


def _is_cancelled() -> bool:
    """Whether somebody has cancelled this task: gRPC raises CancelledError when the client is closed, too."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _read(response: Any, call: Any) -> Piece:
    """Returns the piece in `response`. If it is the last one, or an error, reads the stream of `call` to its
    end: a cancel at the same time as this end makes tritonserver 2.51 crash. Raises GaplessError.
    """
    try:
        piece = read_piece(response)
    except GaplessError:
        await _read_to_the_end(call)
        raise
    if piece.finish_reason:
        await _read_to_the_end(call)
    return piece


async def _read_to_the_end(call: Any) -> None:
    with contextlib.suppress(grpc.RpcError):  # the answer is complete
        async for _ in call:
            pass
