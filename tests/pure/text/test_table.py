"""The table of request fields is what Triton, the client and the docs say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from client.parameters import TABLE
from client.parameters import TIMEOUT as CLIENTS_TIMEOUT
from python_backends.nouns.request import Sampling
from python_backends.text.door.table import FIELDS, KNOWN, NEUTRAL, TENSORRT_LLM_INPUTS
from tests.support.server import random_requests

ROOT = Path(__file__).resolve().parents[3]
DOCS = (ROOT / "docs/parameters.md").read_text()


def config(model: str) -> ModelConfig:
    return text_format.Parse((ROOT / "model_repository" / model / "config.pbtxt").read_text(), ModelConfig())


def written(tensor: Any) -> tuple[str, bool]:
    return DataType.Name(tensor.data_type).removeprefix("TYPE_"), list(tensor.dims) == [-1]


@pytest.mark.parametrize("model", ["ensemble", "tokenizer"])
def test_the_inputs_of_the_models_are_the_fields_in_their_order(model: str) -> None:
    assert [(tensor.name, *written(tensor)) for tensor in config(model).input] == [
        (name, field.dtype, field.is_list) for name, field in FIELDS.items()
    ]


def test_the_ensemble_passes_every_field_to_the_tokenizer() -> None:
    (step,) = (step for step in config("ensemble").ensemble_scheduling.step if step.model_name == "tokenizer")
    assert dict(step.input_map) == {name: name for name in FIELDS}


def test_the_clients_parameters_are_fields_of_the_same_type() -> None:
    theirs = {
        name: (row.dtype.replace("BYTES", "STRING"), row.is_list)
        for name, row in TABLE.items()
        if row.dtype != CLIENTS_TIMEOUT
    }
    assert theirs == {name: (FIELDS[name].dtype, FIELDS[name].is_list) for name in theirs}
    assert (
        FIELDS.keys() - theirs.keys()
        == {"text_input", "messages", "input_ids", "stream"} | TENSORRT_LLM_INPUTS.keys()
    )


def test_the_docs_have_a_row_with_the_type_of_every_field() -> None:
    rows = [line.split("|")[1:3] for line in DOCS.splitlines() if line.startswith("| `")]
    types = {name: kind.strip() for names, kind in rows for name in re.findall(r"`(\w+)`", names)}
    for name in KNOWN - NEUTRAL - {"timeout", "pad_id"}:
        field = FIELDS[name]
        assert types[name].startswith(f"{field.dtype} list" if field.is_list else field.dtype), name


def test_the_random_requests_have_every_field_with_its_type() -> None:
    assert {
        name: field.dtype.replace("STRING", "BYTES") for name, field in FIELDS.items()
    } == random_requests.FIELDS


def test_what_a_field_sets_is_an_attribute_of_sampling_with_the_same_default() -> None:
    defaults = Sampling(max_tokens=1)
    for name, field in FIELDS.items():
        if field.sampling:
            assert getattr(defaults, field.sampling) == field.default, name
