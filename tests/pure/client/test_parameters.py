"""The client's table of parameters is the ensemble's, and values that do
not fit it are refused before they are sent.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from client import Piece, RefusedError, user
from client.parameters import TABLE, TIMEOUT
from client.wire import request_message
from python_backends.text.door.table import TENSORRT_LLM_INPUTS

ROOT = Path(__file__).resolve().parents[3]
PROMPT = {"text_input", "messages", "input_ids", "stream"}  # what the clients' methods say themselves
KINDS = {"INT32": int, "UINT64": int, "FP32": float, "BOOL": bool, "BYTES": str, TIMEOUT: float}
NAMES = {DataType.Value("TYPE_STRING"): "BYTES"}


def ensemble() -> ModelConfig:
    return text_format.Parse((ROOT / "model_repository/ensemble/config.pbtxt").read_text(), ModelConfig())


def dtype(tensor: Any) -> str:
    return NAMES.get(tensor.data_type, DataType.Name(tensor.data_type).removeprefix("TYPE_"))


def test_every_input_of_the_ensemble_is_one_line_of_the_table_and_no_more() -> None:
    theirs = {
        tensor.name: (dtype(tensor), list(tensor.dims) == [-1])
        for tensor in ensemble().input
        # the client need not send what asks for nothing
        if tensor.name not in PROMPT | TENSORRT_LLM_INPUTS.keys()
    }
    ours = {name: (row.dtype, row.is_list) for name, row in TABLE.items() if row.dtype != TIMEOUT}
    assert theirs == ours


def test_every_output_of_the_ensemble_is_a_field_of_a_piece_but_the_row_of_a_batch() -> None:
    outputs = {tensor.name.replace("text_output", "text") for tensor in ensemble().output}
    assert outputs - {"batch_index"} == set(Piece.__dataclass_fields__)


def test_types_for_python_fit_those_for_triton_and_every_line_says_what_it_means() -> None:
    assert all(row.kind is KINDS[row.dtype] and row.meaning for row in TABLE.values())


def imported_by(path: Path) -> set[str]:
    """The packages."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[0] for name in names}


def test_the_client_imports_nothing_of_the_server() -> None:
    servers = {"python_backends", "build", "benchmarks", "tests", "torch"}
    paths = list((ROOT / "client").rglob("*.py"))
    assert paths
    assert {str(path): names for path in paths if (names := imported_by(path) & servers)} == {}


def test_values_travel_as_triton_reads_them() -> None:
    request = request_message(
        [user("é")], True, {"max_tokens": 7, "stop_words": ["a", "bé"], "top_p": 0.5, "deadline_s": 1.5}
    )
    sent = {
        tensor.name: data for tensor, data in zip(request.inputs, request.raw_input_contents, strict=True)
    }
    assert sent["max_tokens"] == b"\x07\0\0\0"
    assert sent["stop_words"] == b"\x01\0\0\0a\x03\0\0\0b\xc3\xa9"
    assert sent["top_p"] == b"\0\0\0\x3f"
    assert sent["stream"] == b"\x01"
    assert [list(tensor.shape) for tensor in request.inputs if tensor.name == "stop_words"] == [[1, 2]]
    assert request.parameters["timeout"].int64_param == 1_500_000
    assert set(sent) == {"messages", "stream", "max_tokens", "stop_words", "top_p"}


@pytest.mark.parametrize("prompt", [[7, 300], (7, 300), np.array([7, 300])])
def test_a_prompt_may_be_token_ids(prompt: Any) -> None:
    request = request_message(prompt, False, {})
    (ids, stream) = request.inputs
    assert (ids.name, list(ids.shape), stream.name) == ("input_ids", [1, 2], "stream")
    assert request.raw_input_contents[0] == b"\x07\0\0\0\x2c\x01\0\0"


def test_a_chat_has_its_letters_and_no_escapes() -> None:
    """A server counts the bytes."""
    sent = request_message([user("Привет, 世界")], False, {}).raw_input_contents[0]
    assert "Привет, 世界".encode() in sent


@pytest.mark.parametrize("content", ["a\ud800", b"bytes"])
def test_a_chat_that_can_not_be_written_is_refused(content: Any) -> None:
    with pytest.raises(RefusedError, match=r"^messages: must be JSON that UTF-8 can encode"):
        request_message([user(content)], False, {})


def test_none_is_as_good_as_absent() -> None:
    assert request_message("x", False, {"seed": None}) == request_message("x", False, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 2**31),
        ("max_tokens", 3.0),
        ("max_tokens", True),
        ("seed", -1),
        ("temperature", "hot"),
        ("temperature", 1e300),
        ("stop_words", "one string"),
        ("stop_words", [1]),
        ("stop_words", 5),
        ("stop_words", ["\ud800"]),
        ("exclude_input_in_output", 1),
        ("deadline_s", 0),
        ("deadline_s", float("nan")),
        ("max_token", 5),
        ("stream", True),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RefusedError, match=rf"^{name}( = .+)?: (must be|there is no such parameter)"):
        request_message("x", False, {name: value})
