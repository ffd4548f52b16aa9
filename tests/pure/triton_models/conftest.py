"""A stand-in for `triton_python_backend_utils`, so that the Triton models can be tested without a server."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from python_backends.engine.choice import choose
from python_backends.settings import ModelSettings, Settings, dump
from python_backends.watching.board import Board
from python_backends.watching.launcher_record import LauncherRecord
from python_backends.wires.run_directory import KEY, SETTINGS
from tests.support.text.checkpoints import TEMPLATE, byte_level_tokenizer, write_checkpoint

PACKAGE = "python_backends.triton_models"


@dataclass
class Tensor:
    own_name: str
    values: np.ndarray

    def name(self) -> str:
        return self.own_name

    def as_numpy(self) -> np.ndarray:
        return self.values


class TritonError(Exception):
    INVALID_ARG, UNAVAILABLE, INTERNAL = 1, 2, 3

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        super().__init__(message)
        self.code = code

    def message(self) -> str:
        return str(self)


@dataclass
class Response:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None


class Sender:
    """As Triton's: a call that says "this is the end" closes it before it
    asks for shared memory, and a closed one raises.
    """

    def __init__(self) -> None:
        # whether it was the end, and the error or the kind of response
        self.sent: list[tuple[bool, str]] = []
        self.is_closed = False
        self.most_bytes = math.inf  # shared memory that is left for a response

    def send(self, response: Response | None = None, flags: int = 0) -> None:
        if self.is_closed:
            raise RuntimeError("Unable to send response. Response sender has been closed.")
        self.is_closed = bool(flags)
        tensors = response.output_tensors if response is not None else []
        if sum(tensor.values.nbytes for tensor in tensors) + (response is not None) > self.most_bytes:
            raise RuntimeError("Failed to increase the shared memory pool size")
        error = response.error if response is not None else None
        self.sent.append((bool(flags), str(error) if error else "window" if response is not None else ""))


@dataclass
class Request:
    """A Triton request with these inputs; `parameters_` is what HTTP made of unknown fields."""

    inputs_: list[Tensor]
    parameters_: dict[str, Any] = field(default_factory=dict)
    timeout_us: int = 0
    sender: Sender = field(default_factory=Sender)
    id_: str = ""

    def request_id(self) -> str:
        return self.id_

    def get_response_sender(self) -> Sender:
        return self.sender

    def inputs(self) -> list[Tensor]:
        return self.inputs_

    def parameters(self) -> str:
        return json.dumps(self.parameters_)

    def timeout(self) -> int:
        return self.timeout_us


class Metric:
    value = 0.0

    def increment(self, amount: float) -> None:
        self.value += amount

    def set(self, value: float) -> None:
        pass


class MetricFamily:
    GAUGE, COUNTER = 1, 2

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def Metric(self, labels: dict[str, str]) -> Metric:  # noqa: N802 (Triton's own name)
        return Metric()


def _input(request: Request, name: str) -> Tensor | None:
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


@pytest.fixture
def pb_utils(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module = ModuleType("triton_python_backend_utils")
    names = {
        "Tensor": Tensor,
        "TritonError": TritonError,
        "InferenceResponse": Response,
        "get_input_tensor_by_name": _input,
    }
    for name, value in {
        **names,
        "MetricFamily": MetricFamily,
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": 1,
    }.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield module
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        monkeypatch.delitem(sys.modules, name)  # imported with the stand-in


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> LauncherRecord:
    """Its record, on a board of its own."""
    board = Board()
    monkeypatch.setattr(Board, "inherited", staticmethod(lambda: board))
    return LauncherRecord(board, ("instance-0",))


@pytest.fixture
def run_directory(launcher: LauncherRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory as the launcher makes it, with the settings of a small model."""
    directory = tmp_path / "run"
    directory.mkdir()
    model = tmp_path / "model"
    model.mkdir()
    texts = {"eos_token": "<|end|>", "chat_template": TEMPLATE}
    write_checkpoint(
        model, byte_level_tokenizer(), texts, config={"max_position_embeddings": 128, "vocab_size": 448}
    )
    settings = Settings(model=ModelSettings(str(model)))
    dump(choose(settings).settings, directory / SETTINGS)
    (directory / KEY).write_bytes(bytes(range(32)))
    monkeypatch.setenv("GAPLESS_RUN_DIRECTORY", str(directory))
    return directory
