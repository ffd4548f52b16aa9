"""Weights of int8: the products are those of the rounded weights, in every engine, and whole answers are
given with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.cpu.library import library
from python_backends.engine.model.description import Layer, Linear
from python_backends.engine.model.quantised import Rounding, quantise
from python_backends.engine.model.weights import take_layers
from python_backends.engine.torch.engine import TorchEngine
from python_backends.engine.torch.projection import MOST_DIRECT_ROWS, PIECE_WEIGHTS, Int8Projection
from python_backends.settings import ROOT, SettingsError, load
from tests.support.model_source import read_from
from tests.support.rounded_head import with_rounded_head, with_rounded_layers
from tests.support.tiny_models import (
    BY_LAYERS,
    INT8_REGRET,
    Serving,
    TinyModel,
    random_requests,
)

ROWS = (1, MOST_DIRECT_ROWS, MOST_DIRECT_ROWS + 1, 16, 256)
DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rounded_weight_is_within_half_a_step_of_the_weight(dtype: torch.dtype) -> None:
    weight = _drawn((96, 64), dtype)
    weight[7] = 0
    rounded = quantise(Linear(weight, None))
    assert rounded.weight.dtype == torch.int8
    assert rounded.scale is not None
    assert rounded.scale.dtype == dtype
    assert int(rounded.weight.abs().amax(1)[:7].min()) >= 126
    assert not rounded.weight[7].any()
    scale = rounded.scale.double()[:, None]
    # the scale itself is rounded to the dtype, which may cut the largest weight of a row a little
    assert (
        (rounded.weight.double() * scale - weight.double()).abs()
        <= scale * (0.5 + 127 * torch.finfo(dtype).eps)
    ).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_with_int8_is_that_of_the_rounded_weight_for_any_number_of_rows(
    dtype: torch.dtype, bias: bool
) -> None:
    offset = _drawn((96,), dtype) if bias else None
    projection, exact = _projection((96, 64), dtype, offset)
    assert torch.equal(projection.weight, exact.to(dtype))
    for rows in ROWS:
        x = _drawn((rows, 64), dtype)
        expected = functional.linear(x.double(), exact, None if offset is None else offset.double())
        _assert_close(projection.forward(x), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_weight_goes_in_pieces_whose_last_is_smaller(dtype: torch.dtype) -> None:
    width = PIECE_WEIGHTS // 16
    projection, exact = _projection((37, width), dtype, None)
    x = _drawn((MOST_DIRECT_ROWS + 4, width), dtype)
    _assert_close(projection.forward(x), x.double() @ exact.T, dtype)


@torch.inference_mode()
def test_every_product_of_every_layer_is_rounded_and_nothing_else(each: TinyModel) -> None:
    plain = list(take_layers(*read_from(each.model)))
    rounded = list(take_layers(*read_from(each.model, Rounding(quantise))))
    for before, after in zip(plain, rounded, strict=True):
        assert all(linear.weight.dtype == torch.int8 for linear in _products(after))
        assert all(linear.weight.dtype == torch.float32 for linear in _products(before))
        others = {field.name for field in fields(Layer)} - {"attention", "feed_forward", *_norms()}
        assert all(getattr(before, name) == getattr(after, name) for name in others)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("torch", "gemma2"),
        ("torch", "gpt_neox"),
        *([("layers", "gemma3"), ("layers", "llama_tied")] if library() is not None else []),
    ],
)
def test_tokens_with_int8_are_nearly_as_good_as_those_of_float32(
    tiny: Callable[[str], TinyModel], kind: str, name: str, dtype: str
) -> None:
    """The tiny models' weights are drawn at random, where rounding shows most:
    agreement is printed, how good a token is asserted.
    """
    model, requests = tiny(name), random_requests(8, seed=8)
    answers = Serving(model.engine_of(kind, weights="int8", dtype=dtype)).run(requests)
    model.check_rounding(f"int8 weights, {kind}, {dtype}", requests, answers, INT8_REGRET)


def test_answers_in_float32_are_transformers_answers_with_the_rounded_weights(
    each: TinyModel, tmp_path: Path
) -> None:
    """What int8 changes is the weights, nowhere anything else: in chunks,
    batches, with biases, whatever the family.
    """
    requests = random_requests(6, seed=3)
    answers = Serving(each.engine(weights="int8"), token_budget=40).run(requests)
    rounded = TinyModel(tmp_path, with_rounded_layers(each.model), each.agreement)
    rounded.check_all(requests, answers)


@pytest.mark.parametrize("name", sorted(BY_LAYERS) if library() is not None else [])
def test_layers_in_cpp_round_weights_only_in_float32(
    tiny: Callable[[str], TinyModel], name: str, tmp_path: Path
) -> None:
    model, requests = tiny(name), random_requests(6, seed=3)
    answers = Serving(model.layers_engine(weights="int8", dtype="float32"), token_budget=40).run(requests)
    rounded = with_rounded_head(with_rounded_layers(model.model))
    TinyModel(tmp_path, rounded, model.agreement).check_all(requests, answers)


def test_another_kind_of_weights_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"model\.weights = 'int2': must be one of same, int8, int4"):
        load(ROOT / "gapless.toml", {"model.weights": "int2"})
    file = tmp_path / "gapless.toml"
    file.write_text('[model]\nweights = "fp8"\n')
    with pytest.raises(SettingsError, match=r"model\.weights = 'fp8'"):
        load(file)


def test_the_torch_engine_has_int8_products_and_a_head_as_it_was(one: TinyModel) -> None:
    engine: TorchEngine = one.engine(weights="int8")
    for block in engine.decoder.blocks:
        assert all(isinstance(projection, Int8Projection) for projection in block.projections.values())
    assert torch.equal(engine.decoder.head.weight, one.model.get_output_embeddings().weight)


def _drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _projection(
    shape: tuple[int, int], dtype: torch.dtype, bias: Tensor | None
) -> tuple[Int8Projection, Tensor]:
    """And the weight that it shall multiply with, exactly."""
    rounded = quantise(Linear(_drawn(shape, dtype), bias))
    assert rounded.scale is not None
    return Int8Projection(
        rounded.weight, rounded.scale, bias
    ), rounded.weight.double() * rounded.scale.double()[:, None]


def _assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Sums of many terms: measured against the largest."""
    assert actual.dtype == dtype
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error < (1e-5 if dtype == torch.float32 else 8e-3)


def _products(layer: Layer) -> list[Linear]:
    attention, feed_forward = layer.attention, layer.feed_forward
    return [attention.qkv, attention.output, feed_forward.up, feed_forward.down]


def _norms() -> set[str]:
    return {field.name for field in fields(Layer) if field.name.endswith("_norm")}
