"""The `tokenizer` model: tensors of a client in, one checked `Request` out, or an error that says what is wrong with which field.

Batches are tokenized together. Deadlines come two ways: gRPC's as the request's own timeout, HTTP's as a parameter.
"""

from __future__ import annotations

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends.board import Board
from python_backends.instance_state import DRAINING, InstanceRecord
from python_backends.request import RefusedError, Request
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.door import ANY_ENGINE, open_door
from python_backends.triton_models.life import Life, watched
from python_backends.triton_models.tensors import Blobs, effective_settings, failure, run_directory


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        settings = effective_settings()
        _, limits = InstanceRecord(Board.inherited(), 0).read()
        engine = limits or ANY_ENGINE
        self._blobs = Blobs()
        self._draining = run_directory() / DRAINING
        checkpoint, predicts = read_checkpoint(settings.model_directory), settings.predicts_lengths
        self._door = open_door(checkpoint, settings.limits, engine.max_model_tokens, engine, predicts)
        self.life = Life("tokenizer")

    @watched
    def execute(self, requests: list[Any]) -> list[Any]:
        if self._draining.exists():
            return [failure("the server is shutting down and takes no new requests", "UNAVAILABLE") for _ in requests]
        read = [_fields(request) for request in requests]
        admitted = iter(self._door.admit([fields for fields in read if not isinstance(fields, RefusedError)]))
        return [self._response(fields if isinstance(fields, RefusedError) else next(admitted)) for fields in read]

    def finalize(self) -> None:
        self.life.end()

    def _response(self, admitted: Request | RefusedError) -> Any:
        if isinstance(admitted, RefusedError):
            return failure(str(admitted), "INVALID_ARG")
        return pb_utils.InferenceResponse([self._blobs.tensor("request", admitted)])


def _fields(request: Any) -> dict[str, Any] | RefusedError:
    fields = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    try:
        timeout_us = request.timeout() or json.loads(request.parameters()).get("timeout")
    except ValueError as error:  # one that raised here would take all requests of its batch along
        return RefusedError(f"parameters: must be JSON in UTF-8 ({error})")
    return {**fields, "timeout_us": timeout_us} if timeout_us else fields
