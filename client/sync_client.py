"""The client for ordinary programs. Thread-safe: one `Client` serves many threads over one connection."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from .channel import channel_options
from .errors import FailedError, GaplessError, UnavailableError, from_grpc
from .parameters import Parameters
from .retries import Call, Retries
from .wire import Piece, Prompt, deadline_us, read_piece, request_message, shorten, stream_call


class Client:
    """`timeout_s` limits a whole call, with all attempts; None: no limit."""

    def __init__(
        self, url: str = "127.0.0.1:8001", *, timeout_s: float | None = None, retries: Retries | None = None
    ) -> None:
        self._url = url
        self._channel = grpc.insecure_channel(url, channel_options(url))
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._ask = stream_call(self._channel)
        self._timeout_s = timeout_s
        self._retries = retries or Retries()
        self._sleep: Callable[[float], object] = time.sleep

    def stream(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> Generator[Piece, None, None]:
        """Yields pieces of the answer when they arrive; the last one has a `finish_reason`.

        The request is sent with the first `next()`. Leaving the loop or closing the iterator cancels it.
        Raises GaplessError.
        """
        return self._pieces(request_message(prompt, stream=True, parameters=parameters))

    def generate(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> Piece:
        """Returns the whole answer in one piece. Raises GaplessError."""
        (answer,) = self._pieces(request_message(prompt, stream=False, parameters=parameters))
        return answer

    def is_ready(self) -> bool:
        try:
            return bool(self._answer(self._stub.ServerReady, service_pb2.ServerReadyRequest()).ready)
        except GaplessError:
            return False

    def server_version(self) -> str:
        """Returns name and version, such as `triton 2.51.0`. Raises GaplessError."""
        said = self._answer(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest())
        return f"{said.name} {said.version}"

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, ask: Any, request: Any) -> Any:
        """Raises GaplessError."""
        try:
            return ask(request, timeout=5)
        except (grpc.RpcError, ValueError) as error:
            raise from_grpc(error, self._url) from error

    def _pieces(self, request: Any) -> Generator[Piece, None, None]:
        tries, limit_us = Call(self._retries, self._timeout_s), deadline_us(request)
        while True:
            try:
                call = self._ask(request, timeout=tries.left_s())
            except ValueError as error:
                raise from_grpc(error, self._url) from error
            try:
                for response in call:
                    piece = _read(response, call)
                    if piece.says_something:  # an empty chunk only shows that the connection is alive
                        tries.has_begun = True
                        yield piece
                    if piece.finish_reason:
                        return
                raise FailedError("the stream ended before the answer was complete")
            except UnavailableError as error:
                pause_s = tries.pause_s(error)
            except grpc.RpcError as error:
                pause_s = tries.pause_s(from_grpc(error, self._url))
            finally:
                call.cancel()
            self._sleep(pause_s)
            shorten(request, limit_us, tries.spent_s())


def _read(response: Any, call: Any) -> Piece:
    """Returns the piece in `response`. If it is the last one, or an error, reads the stream of `call` to its
    end: a cancel at the same time as this end makes tritonserver 2.51 crash. Raises GaplessError.
    """
    try:
        piece = read_piece(response)
    except GaplessError:
        _read_to_the_end(call)
        raise
    if piece.finish_reason:
        _read_to_the_end(call)
    return piece


def _read_to_the_end(call: Any) -> None:
    with contextlib.suppress(grpc.RpcError):  # the answer is complete
        for _ in call:
            pass
