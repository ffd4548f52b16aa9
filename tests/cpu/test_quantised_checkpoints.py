"""Checkpoints with few bits a weight: each weight is the one that is meant, to the last bit, and is served
with the tokens of the dequantised checkpoint; schemes, options and tensors that are not known are refused by
name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.quantisation import FIELD, METHODS, read_layout
from python_backends.checkpoint.source import CheckpointError
from python_backends.engine.cpu.library import library
from python_backends.settings import SettingsError
from tests.support.quantised_checkpoints import AWQ, BLOCKED, SCHEMES, change, compressed, gptq_config, write
from tests.support.tiny_models import Serving, TinyModel, random_requests

PATH = Path("/model/config.json")


@pytest.fixture(params=sorted(SCHEMES))
def written(request: pytest.FixtureRequest, one: TinyModel, tmp_path: Path) -> tuple[Path, Path]:
    """A quantised checkpoint, and the one with its weights."""
    quantised, plain = tmp_path / "quantised", tmp_path / "plain"
    write(SCHEMES[request.param], one.directory, quantised, plain)
    return quantised, plain


def test_each_weight_is_the_one_that_is_meant(written: tuple[Path, Path]) -> None:
    source, expected = open_source(written[0]), load_file(written[1] / "model.safetensors")
    assert source.tensors.keys() == expected.keys()
    for name, weight in expected.items():
        read = source.read(name)
        assert read.dtype == weight.dtype
        assert source.tensors[name].shape == tuple(weight.shape)
        assert torch.equal(read, weight), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_served_as_what_it_means(written: tuple[Path, Path], one: TinyModel, dtype: str) -> None:
    requests, answers = random_requests(4), []
    for directory in written:
        model = TinyModel(directory, None, one.agreement)
        answers.append(Serving(model.engine(dtype=dtype)).run(requests))
    assert answers[0] == answers[1]
    if dtype == "float32":
        reference = AutoModelForCausalLM.from_pretrained(written[1], dtype=torch.float32).eval()
        TinyModel(written[1], reference, one.agreement).check_all(requests, answers[0])


@pytest.mark.skipif(library() is None, reason="wants a C++ compiler, and AVX2")
def test_layers_in_cpp_serve_it(one: TinyModel, tmp_path: Path) -> None:
    write(SCHEMES["AWQ"], one.directory, tmp_path / "quantised", tmp_path / "plain")
    requests = random_requests(4)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32).eval()
    answers = Serving(TinyModel(tmp_path / "quantised", None, one.agreement).layers_engine()).run(requests)
    TinyModel(tmp_path / "plain", reference, one.agreement).check_all(requests, answers)


INT4 = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32}
REFUSED: dict[str, tuple[Any, str]] = {
    "no table": ("awq", "must be an object"),
    "no method": ({}, "quant_method = None: only compressed-tensors, fp8, awq, gptq is served"),
    "another method": ({"quant_method": "bitsandbytes"}, "quant_method = 'bitsandbytes': only"),
    "AWQ of other bits": ({**AWQ, "bits": 3}, "bits = 3: only 4 is served"),
    "AWQ of another order": ({**AWQ, "version": "gemv"}, "version = 'gemv': only gemm"),
    "AWQ of another order by its newer name": ({**AWQ, "format": "gemv"}, "format = 'gemv': only gemm"),
    "AWQ without zeros": ({**AWQ, "zero_point": False}, "zero_point = False: only True"),
    "no size of a group": ({**AWQ, "group_size": 0}, "group_size = 0: must be a positive number, or -1"),
    "GPTQ of other bits": (gptq_config(3), "bits = 3: only 4, 8 is served"),
    "bits that are no number": (gptq_config(True), "bits = True: only"),  # type: ignore[arg-type]
    "GPTQ in another format": (
        gptq_config(4, checkpoint_format="marlin"),
        "checkpoint_format = 'marlin': only",
    ),
    "GPTQ in another format by its newer name": (
        gptq_config(4, format="marlin"),
        ": format = 'marlin': only gptq, gptq_v2 is served",
    ),
    "GPTQ with modules of their own": (gptq_config(4, dynamic={"+:x": {}}), "dynamic = {'+:x': {}}: must"),
    "FP8 of another type": ({**BLOCKED, "fmt": "e5m2"}, "fmt = 'e5m2': only e4m3 is served"),
    "FP8 of other blocks": (
        {**BLOCKED, "weight_block_size": [1, 2, 3]},
        "weight_block_size = [1, 2, 3]: must",
    ),
    "another format": (compressed("nvfp4-pack-quantized", **INT4), "format = 'nvfp4-pack-quantized': only"),
    "another strategy": (
        compressed("pack-quantized", **{**INT4, "strategy": "tensor_group"}),
        "config_groups: group_0: weights: strategy = 'tensor_group': only channel, group is served",
    ),
    "int8 with zeros": (
        compressed("int-quantized", type="int", num_bits=8, strategy="channel", symmetric=False),
        "symmetric = False: only True is served",
    ),
    "an order by activation": (
        compressed("pack-quantized", **INT4, actorder="group"),
        "actorder = 'group': only weight, static, False is served",
    ),
    "a rotation": (
        {**compressed("pack-quantized", **INT4), "transform_config": {"a": 1}},
        "transform_config = {'a': 1}: is not served",
    ),
    "a sparse one": (
        {**compressed("pack-quantized", **INT4), "sparsity_config": {"format": "sparse-24-bitmask"}},
        "sparsity_config: format = 'sparse-24-bitmask': only dense is served",
    ),
    "a cache of its own": (
        {**compressed("pack-quantized", **INT4), "kv_cache_scheme": {"num_bits": 8}},
        "kv_cache_scheme = {'num_bits': 8}: is not served",
    ),
    "two kinds of weights": (
        {
            **compressed("pack-quantized", **INT4),
            "config_groups": {
                name: {"weights": {**INT4, "symmetric": True, "num_bits": bits}}
                for name, bits in (("a", 4), ("b", 8))
            },
        },
        "must say of all weights the same",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_by_its_field(name: str) -> None:
    said, why = REFUSED[name]
    with pytest.raises(CheckpointError) as raised:
        read_layout(PATH, {FIELD: said})
    assert str(raised.value).startswith(f"{PATH}: {FIELD}: ")
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


def test_modules_that_stay_as_they_were_change_nothing() -> None:
    plain, said = gptq_config(4), gptq_config(4, dynamic={"-:.*gate.*": {}, "-:lm_head": {"bits": 8}})
    assert read_layout(PATH, {FIELD: said}) == read_layout(PATH, {FIELD: plain})


def test_the_newer_name_of_a_format_means_the_same() -> None:
    """Where both are there, the older one goes first."""
    older, first = gptq_config(4, checkpoint_format="gptq_v2"), gptq_config(4)
    newer, both = gptq_config(4, format="gptq_v2"), gptq_config(4, format="gptq_v2", checkpoint_format="gptq")
    layouts = [read_layout(PATH, {FIELD: each}) for each in (older, newer, first, both)]
    assert layouts[0] == layouts[1] != layouts[2] == layouts[3]


def test_weights_whose_quantising_has_not_been_taken_back_are_the_same() -> None:
    scheme = compressed("pack-quantized", **INT4, symmetric=True)
    status = {**scheme, "quantization_status": "frozen"}
    assert read_layout(PATH, {FIELD: status}) == read_layout(PATH, {FIELD: scheme})


def test_biases_of_zeros_that_the_model_lacks_are_left_out(one: TinyModel, tmp_path: Path) -> None:
    """As AutoGPTQ has written them; others are refused."""
    write(SCHEMES["GPTQ of 4 bits"], one.directory, tmp_path / "quantised", tmp_path / "plain")
    file = tmp_path / "quantised" / "model.safetensors"
    tensors, bias = load_file(file), "model.layers.0.mlp.down_proj.bias"
    requests = random_requests(2)
    model = TinyModel(tmp_path / "quantised", None, one.agreement)
    answers = Serving(model.engine()).run(requests)
    save_file({**tensors, bias: torch.zeros(64)}, file)
    assert Serving(model.engine()).run(requests) == answers
    save_file({**tensors, bias: torch.ones(64)}, file)
    with pytest.raises(SettingsError, match=f"this model has no place for {bias}"):
        model.engine()


def test_a_checkpoint_without_a_scheme_has_none() -> None:
    assert read_layout(PATH, {}) is None
    assert METHODS.keys() == {each.config["quant_method"] for each in SCHEMES.values()}


def spoiled(directory: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors.pop(name)
    save_file(tensors if tensor is None else {**tensors, name: tensor}, directory / "model.safetensors")


MODULE = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("scheme", "part", "tensor", "why"),
    [
        ("AWQ", "scales", None, f"the quantised weights lack {MODULE}.scales"),
        ("AWQ", "qzeros", None, f"the quantised weights lack {MODULE}.qzeros"),
        (
            "AWQ",
            "qzeros",
            torch.zeros(1, 1, dtype=torch.int32),
            f"{MODULE}.qzeros is I32 [1, 1]; {FIELD} says",
        ),
        (
            "AWQ",
            "scales",
            torch.zeros(2, 64, dtype=torch.float64),
            f"{MODULE}.scales is F64 [2, 64]; {FIELD}",
        ),
        ("float8 of channels", "weight_scale", None, f"the quantised weights lack {MODULE}.weight_scale"),
        (
            "float8 of blocks",
            "weight_scale",
            torch.ones(1),
            f"{MODULE}.weight_scale is F32 [1]; {FIELD} says",
        ),
    ],
)
def test_a_part_that_is_missing_or_of_another_shape_is_named(
    one: TinyModel, tmp_path: Path, scheme: str, part: str, tensor: torch.Tensor | None, why: str
) -> None:
    write(SCHEMES[scheme], one.directory, tmp_path / "quantised", tmp_path / "plain")
    spoiled(tmp_path / "quantised", f"{MODULE}.{part}", tensor)
    with pytest.raises(CheckpointError) as raised:
        _ = open_source(tmp_path / "quantised").tensors
    assert why in str(raised.value)


def test_an_index_of_groups_that_are_not_there_is_refused(one: TinyModel, tmp_path: Path) -> None:
    write(SCHEMES["GPTQ of 4 bits"], one.directory, tmp_path / "quantised", tmp_path / "plain")
    spoiled(tmp_path / "quantised", f"{MODULE}.g_idx", torch.full((64,), 2, dtype=torch.int32))
    with pytest.raises(CheckpointError, match=f"{MODULE}.weight: g_idx names a group that is none of 2"):
        open_source(tmp_path / "quantised").read(f"{MODULE}.weight")


def test_the_tensors_of_a_scheme_that_is_not_known_are_as_they_are_stored(
    one: TinyModel, tmp_path: Path
) -> None:
    write(SCHEMES["AWQ"], one.directory, tmp_path / "quantised", tmp_path / "plain")
    change(tmp_path / "quantised", quantization_config={"quant_method": "bitsandbytes"})
    assert f"{MODULE}.qweight" in open_source(tmp_path / "quantised").tensors
