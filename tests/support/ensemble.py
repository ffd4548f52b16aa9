"""A stand-in for the ensemble over gRPC: it answers with the pieces that it is told to, and remembers what it
was asked. The front of the tests is in the same process, with a real port.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from tritonclient.grpc import service_pb2, service_pb2_grpc

from client import wire
from client.parameters import FORMATS, TABLE
from client.wire import Piece
from front.app import App
from front.attempts import Patience
from front.connections import Connection
from front.keys import Keys
from front.lasting import LastingClient
from front.model import Model
from python_backends.settings import FrontSettings, ModelSettings, Settings
from python_backends.watching.board import Board

ORIGIN = "https://chat.example.org"
# no attempt after a first one that failed
NO_PATIENCE = Patience(is_up=lambda: True, is_ending=lambda: True, longest_s=0.0)
KINDS = {
    "output_ids": "INT32",
    "output_log_probs": "FP32",
    "top_ids": "INT32",
    "top_log_probs": "FP32",
    "prompt_ids": "INT32",
    "prompt_log_probs": "FP32",
    "prompt_top_ids": "INT32",
    "prompt_top_log_probs": "FP32",
}


@dataclass
class Ensemble(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """`pieces` is the answer to each request, or `error`; None in it is a wait until the client cancels.
    `turns` are the answers to the next requests, and `errors` their errors.
    """

    pieces: Sequence[Piece | None] = ()
    error: str = ""
    errors: list[str] = field(default_factory=list)
    turns: list[Sequence[Piece | None]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)  # of the requests, as Triton calls them
    traces: list[str | None] = field(default_factory=list)  # their metadata `traceparent`
    cancelled: threading.Event = field(default_factory=threading.Event)
    pause_s: float = 0.0  # before the first piece

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        """As Triton's service."""
        request = next(requests)
        asked = inputs_of(request)
        self.asked.append(asked)
        self.ids.append(request.id)
        self.traces.append(dict(context.invocation_metadata()).get("traceparent"))
        if error := self.errors.pop(0) if self.errors else self.error:
            yield service_pb2.ModelStreamInferResponse(error_message=f"in ensemble 'ensemble', {error}")
            return
        found = self.turns.pop(0) if self.turns else self.pieces
        pieces = found if asked["stream"] else [whole(found)]
        # before the first piece: gRPC asks for no other one of a request that is cancelled
        if None in pieces and not context.add_callback(self.cancelled.set):  # cancelled already
            self.cancelled.set()
        time.sleep(self.pause_s)
        for piece in pieces:
            if piece is None:
                self.cancelled.wait(30)
                return
            yield response(piece)


def whole(pieces: Sequence[Piece | None]) -> Piece | None:
    """The answer without `stream`."""
    if None in pieces:
        return None
    known = [piece for piece in pieces if piece is not None]
    return Piece(
        text="".join(piece.text for piece in known),
        finish_reason=known[-1].finish_reason,
        num_input_tokens=known[-1].num_input_tokens,
        num_cached_tokens=known[-1].num_cached_tokens,
        num_output_tokens=sum(piece.num_output_tokens or 0 for piece in known),
        **{name: tuple(value for piece in known for value in getattr(piece, name)) for name in KINDS},
    )


def inputs_of(request: Any) -> dict[str, Any]:
    """A request's inputs as Python values; lists as tuples."""
    found = {}
    for tensor, data in zip(request.inputs, request.raw_input_contents, strict=True):
        values = wire._values(tensor.datatype, data)
        row = TABLE.get(tensor.name)
        is_list = tensor.name == "input_ids" or (row is not None and row.is_list)
        found[tensor.name] = tuple(values) if is_list else values[0]
    return found


def response(piece: Piece) -> Any:
    made = service_pb2.ModelStreamInferResponse()
    _add(made, "text_output", "BYTES", [1], [piece.text])
    if piece.finish_reason:
        _add(made, "finish_reason", "BYTES", [1, 1], [piece.finish_reason])
    for name in ("num_input_tokens", "num_cached_tokens", "num_output_tokens"):
        _add(made, name, "INT32", [1, 1], [getattr(piece, name) or 0])
    for name, dtype in KINDS.items():
        values = getattr(piece, name)
        if values and isinstance(values[0], tuple):
            rows = [value for row in values for value in row]
            _add(made, name, dtype, [1, len(values), len(values[0])], rows)
        elif values:
            _add(made, name, dtype, [1, 1, len(values)], values)
    return made


def _add(made: Any, name: str, dtype: str, shape: list[int], values: Sequence[Any]) -> None:
    made.infer_response.outputs.add(name=name, datatype=dtype, shape=shape)
    if dtype == "BYTES":
        data = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in values)
    else:
        data = b"".join(struct.pack(FORMATS[dtype], value) for value in values)
    made.infer_response.raw_output_contents.append(data)


class Front:
    """A front over a stand-in ensemble, until it is closed."""

    def __init__(
        self,
        ensemble: Ensemble,
        model: Path,
        run_directory: Path,
        keys: Keys,
        demo: bool = False,
        model_names: str = "",
        corrections: int = 0,
        patience: Patience = NO_PATIENCE,
        **sections: Any,
    ) -> None:
        """`sections`: of the settings, besides those that a front of the tests has."""
        self._grpc = grpc.server(futures.ThreadPoolExecutor(16))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(ensemble, self._grpc)
        port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        settings = Settings(
            model=ModelSettings(directory=str(model)),
            front=FrontSettings(
                allowed_origins=ORIGIN,
                demo=demo,
                directory=str(run_directory / "front directory"),
                model_names=model_names,
                corrections=corrections,
            ),
            **sections,
        )
        self.board = Board()
        self.model = Model(settings, self.board)

        async def serve() -> None:
            async with LastingClient(f"127.0.0.1:{port}", patience) as client:
                app = App(settings, run_directory, self.model, client, keys)
                config = uvicorn.Config(
                    app,
                    port=0,
                    http=Connection,
                    ws="none",
                    lifespan="off",
                    log_config=None,
                    access_log=False,
                )
                self._server = uvicorn.Server(config)
                others = [asyncio.create_task(each.run()) for each in (app.batches, app.corrections)]
                await self._server.serve()
                for other in others:
                    other.cancel()
                await asyncio.gather(*others, return_exceptions=True)

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()))
        self._thread.start()
        while not (hasattr(self, "_server") and self._server.started):
            time.sleep(0.01)
        self.port = int(self._server.servers[0].sockets[0].getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._grpc.stop(0)
        self.board.close()
