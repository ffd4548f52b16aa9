"""The three doors of a server, spoken to in raw bytes: one request through one of them, and everything that
came back.

Nothing here knows what a good request looks like, so tests can send bad ones; `body` and `message` write good
ones. Answers are read to their very end: an answer that ends twice, or not at all, shows.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tests.support.server.serving import tensor

PATH = "/v2/models/ensemble/"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
TIMEOUT_S = 120.0


@dataclass
class Outcome:
    """Everything that came back for one request."""

    status: str = ""  # of HTTP ("200"), or the name of gRPC's ("OK")
    text: str = ""
    reasons: list[str] = field(default_factory=list)  # every finish_reason
    errors: list[str] = field(default_factory=list)
    num_outputs: int = 0  # tensors that came back over gRPC, whatever their names
    cut: bool = False  # we hung up

    @property
    def num_ends(self) -> int:
        return len(self.reasons) + len(self.errors)

    def take(self, chunk: dict[str, Any]) -> None:
        """One JSON answer or chunk."""
        if "error" in chunk:
            self.errors.append(str(chunk["error"]))
            return
        self.text += chunk.get("text_output", "")
        if chunk.get("finish_reason"):
            self.reasons.append(chunk["finish_reason"])


def body(**inputs: Any) -> bytes:
    return json.dumps(inputs).encode()


def message(timeout_us: int | None = None, **inputs: Any) -> bytes:
    """A ModelInferRequest, written; inputs as in HTTP."""
    return bytes(as_message(timeout_us, **inputs).SerializeToString())


def as_message(timeout_us: int | None = None, **inputs: Any) -> Any:
    """A ModelInferRequest; inputs as in HTTP."""
    request = service_pb2.ModelInferRequest(model_name="ensemble", id="1")
    for name, value in inputs.items():
        made = tensor(name, value)
        request.inputs.append(made._get_tensor())
        request.raw_input_contents.append(made._get_content())
    if timeout_us is not None:
        request.parameters["timeout"].int64_param = timeout_us
    return request


def post(port: int, door: str, content: bytes, cut_after_s: float | None = None) -> Outcome:
    """Through `generate` or `generate_stream`. With `cut_after_s` the
    connection is broken then, unless all came before.
    """
    connection = http_connection(port)
    cut = threading.Timer(cut_after_s, _break, [connection]) if cut_after_s is not None else None
    outcome = Outcome()
    try:
        connection.request("POST", PATH + door, content, {"Content-Type": "application/json"})
        if cut:
            cut.start()
        response = connection.getresponse()
        outcome.status = str(response.status)
        _read(response, outcome)
    # whatever a connection says that is broken under it
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        if cut is None:
            raise
        outcome.cut = True
    finally:
        if cut:
            cut.cancel()
            cut.join()
        connection.close()
    return outcome


def http_connection(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)


def _break(connection: http.client.HTTPConnection) -> None:
    with contextlib.suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)


def _read(response: http.client.HTTPResponse, outcome: Outcome) -> None:
    unreadable = "strict" if response.status == 200 else "replace"  # Triton's own errors repeat broken names
    content = response.read().decode(errors=unreadable)
    lines = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
    for line in lines or [content]:
        outcome.take(json.loads(line))


class GrpcDoor:
    """`ModelStreamInfer`, one call a request over one connection. Threads may share it."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._call = self._channel.stream_stream(
            STREAM, response_deserializer=service_pb2.ModelStreamInferResponse.FromString
        )

    def __enter__(self) -> GrpcDoor:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def ask(self, content: bytes, cancel_after_s: float | None = None) -> Outcome:
        """With `cancel_after_s` the call is cancelled then, unless all came before."""
        outcome = Outcome()
        call = self._call(iter([content]), timeout=TIMEOUT_S)
        cancel = threading.Timer(cancel_after_s, call.cancel) if cancel_after_s is not None else None
        if cancel:
            cancel.start()
        try:
            for response in call:
                _take(response, outcome)
            outcome.status = call.code().name
        except grpc.RpcError as error:
            outcome.status = error.code().name
            outcome.cut = cancel is not None and error.code() == grpc.StatusCode.CANCELLED
            outcome.errors += [] if outcome.cut else [str(error.details())]
        finally:
            if cancel:
                cancel.cancel()
        return outcome


def _take(response: Any, outcome: Outcome) -> None:
    if response.error_message:
        outcome.errors.append(response.error_message)
        return
    infer = response.infer_response
    outcome.num_outputs += len(infer.outputs)
    outputs = {output.name: raw for output, raw in zip(infer.outputs, infer.raw_output_contents, strict=True)}
    texts = {name: outputs[name][4:].decode() for name in ("text_output", "finish_reason") if name in outputs}
    outcome.take(texts)
