"""The `tokenizer` model: tensors of a client in, one checked `Request` out, or an error that says what is
wrong with which field.

A batch saves calls by Triton; its requests are read one after the other. Deadlines come two ways: gRPC's as
the request's own timeout, HTTP's as a parameter.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends.nouns.request import RefusedError
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.door.door import ANY_ENGINE, open_door
from python_backends.text.door.fields import of_parameters
from python_backends.triton_models.door_metrics import SHUTTING_DOWN, DoorMetrics
from python_backends.triton_models.life import Life, watched
from python_backends.triton_models.tensors import (
    FAILED,
    Blobs,
    effective_settings,
    failure,
    hide_shared_memory,
)
from python_backends.watching.board import Board
from python_backends.watching.instance_state import AdapterList, limits_of_any
from python_backends.watching.launcher_record import is_draining

log = logging.getLogger("gapless.tokenizer")

MOST_ID_CHARS = 128  # of what a client calls its request
NOT_SHOWN = re.compile(r"[^!-~]")  # terminals of operators show it: no control characters


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        hide_shared_memory()
        settings = effective_settings()
        self._board = Board.inherited()
        engine = limits_of_any(self._board, settings.cluster.most_instances) or ANY_ENGINE
        self._blobs = Blobs()
        checkpoint, predicts = read_checkpoint(settings.model_directory), settings.predicts_lengths
        rendered = settings.model.text_input_is_rendered
        self._door = open_door(
            checkpoint, settings.limits, engine.max_model_tokens, engine, predicts, rendered
        )
        # adapters come and go while the server runs, if there is a directory
        has_adapters = bool(settings.adapters.directory)
        self._adapters = AdapterList(self._board, settings.cluster.most_instances) if has_adapters else None
        self._metrics = DoorMetrics()
        self.life = Life("tokenizer")

    @watched
    def execute(self, requests: list[Any]) -> list[Any]:
        if is_draining(self._board):
            self._metrics.refused(SHUTTING_DOWN, len(requests))
            return [
                failure("the server is shutting down and takes no new requests", SHUTTING_DOWN)
                for _ in requests
            ]
        if self._adapters is not None:
            self._door = self._door.with_adapters(self._adapters.read())
        return [self._response(request) for request in requests]

    def finalize(self) -> None:
        self.life.end()

    def _response(self, request: Any) -> Any:
        """An error in one request is its answer: an exception would fail all requests of the batch."""
        self.life.call_begins()  # the longest time is that of one request, not of a batch
        try:
            accepted = self._door.answer(_fields(request))
            client_id = request.request_id()[:MOST_ID_CHARS]
        except RefusedError as refused:
            accepted = refused
        except Exception:  # a fault of ours
            log.exception("the tokenizer model: a request can't be read")
            return failure("the request can't be read; the server's log says more", FAILED)
        if isinstance(accepted, RefusedError):
            self._metrics.refused(accepted.code)
            return failure(str(accepted), accepted.code)
        if client_id:
            accepted = accepted.changed(client_id=NOT_SHOWN.sub("?", client_id))
        return pb_utils.InferenceResponse([self._blobs.tensor("request", accepted)])


def _fields(request: Any) -> dict[str, Any]:
    """Raises RefusedError."""
    try:
        parameters = json.loads(request.parameters())
    except ValueError as error:
        raise RefusedError(f"parameters: must be JSON in UTF-8 ({error})") from error
    fields = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()} | of_parameters(parameters)
    timeout_us = request.timeout()
    return {**fields, "timeout": timeout_us} if timeout_us else fields
