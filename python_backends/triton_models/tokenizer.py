"""The `tokenizer` model: tensors of a client in, one checked `Request` out, or an error that says what is wrong with which field.

Batches are tokenized together. Deadlines come two ways: gRPC's as the request's own timeout, HTTP's as a parameter.
"""

from __future__ import annotations

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends.instance_state import DRAINING, StateFile
from python_backends.request import RefusedError, Request
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.door import open_door
from python_backends.triton_models.tensors import Blobs, effective_settings, failure, run_directory


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        settings = effective_settings()
        _, limits = StateFile(run_directory(), 0).read()
        most = limits.max_model_tokens if limits else 0
        self._blobs = Blobs()
        self._draining = run_directory() / DRAINING
        self._door = open_door(read_checkpoint(settings.model_directory), settings.limits, most)

    def execute(self, requests: list[Any]) -> list[Any]:
        if self._draining.exists():
            return [failure("the server is shutting down and takes no new requests", "UNAVAILABLE") for _ in requests]
        return [self._response(admitted) for admitted in self._door.admit([_fields(request) for request in requests])]

    def _response(self, admitted: Request | RefusedError) -> Any:
        if isinstance(admitted, RefusedError):
            return failure(str(admitted), "INVALID_ARG")
        return pb_utils.InferenceResponse([self._blobs.tensor("request", admitted)])


def _fields(request: Any) -> dict[str, Any]:
    fields = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    timeout_us = request.timeout() or json.loads(request.parameters()).get("timeout")
    return {**fields, "timeout_us": timeout_us} if timeout_us else fields
