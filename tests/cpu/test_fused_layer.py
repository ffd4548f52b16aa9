"""Our operation for what lies between two attentions: its numbers beside
torch's, and the engine with and without it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from openvino import opset15 as ops
from torch import Tensor
from torch.nn import functional

from python_backends.engine.model.description import (
    Activation,
    Attention,
    FeedForward,
    Layer,
    Linear,
    Norm,
    NormKind,
)
from python_backends.engine.openvino import fused_layer
from python_backends.engine.openvino.fused_graph import FusedOperation, fits
from python_backends.engine.openvino.fused_layer import Kind
from tests.support.tiny_models import BFLOAT16_REGRET, TINY, Serving, TinyModel, random_requests

HIDDEN, HEADS, GATED, WIDTHS = 160, 96, 224, [96, 32, 64]
ROWS = (1, 5, 16, 17, 32, 33, 64, 70, 131)

wanted = pytest.mark.skipif(
    fused_layer.library() is None, reason="wants a C++ compiler, and AVX512_BF16 or AMX"
)


def random_linear(outputs: int, inputs: int, bias: bool) -> Linear:
    weight = torch.randn(outputs, inputs) / inputs**0.5
    return Linear(weight.bfloat16(), torch.randn(outputs).bfloat16() if bias else None)


def random_norm() -> Norm:
    return Norm(NormKind.RMS, torch.rand(HIDDEN) + 0.5, None, 1e-5)


@dataclass
class Between:
    """Random weights of what lies between two attentions."""

    layer: Layer
    following: Layer

    @classmethod
    def random(cls, bias: bool) -> Between:
        torch.manual_seed(int(bias))
        return cls(cls._layer(bias), cls._layer(bias))

    @staticmethod
    def _layer(bias: bool) -> Layer:
        attention = Attention(
            random_linear(sum(WIDTHS), HIDDEN, bias),
            random_linear(HIDDEN, HEADS, bias),
            None,
            None,
            None,
            None,
            None,
        )
        up, down = random_linear(2 * GATED, HIDDEN, bias), random_linear(HIDDEN, GATED, bias)
        feed_forward = FeedForward(up, down, Activation.SILU, gated=True)
        return Layer(
            attention,
            feed_forward,
            random_norm(),
            None,
            random_norm(),
            None,
            parallel=False,
            residual_scale=1,
        )

    def expected(self, x: Tensor, attended: Tensor) -> list[Tensor]:
        """By torch in float32, rounded to bfloat16 where the operation rounds."""
        x = x + linear(attended, self.layer.attention.output)
        gate, up = linear(normed(x, self.layer.feed_forward_norm), self.layer.feed_forward.up).chunk(2, -1)
        x = x + linear(rounded(functional.silu(gate) * up), self.layer.feed_forward.down)
        return [
            x,
            *torch.split(
                linear(normed(x, self.following.attention_norm), self.following.attention.qkv), WIDTHS, -1
            ),
        ]


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def linear(x: Tensor, by: Linear) -> Tensor:
    return functional.linear(x, by.weight.float(), None if by.bias is None else by.bias.float())


def normed(x: Tensor, norm: Norm | None) -> Tensor:
    assert norm is not None
    return rounded(functional.rms_norm(x, (HIDDEN,), norm.weight, norm.eps))


@pytest.fixture(scope="module", params=fused_layer.kinds_here())
def operation(request: pytest.FixtureRequest) -> FusedOperation:
    """For everything that this processor can multiply with."""
    return FusedOperation(fused_layer.compiled(request.param))


def compiled(
    outputs: list[ov.Output], inputs: list[ov.Node]
) -> Callable[[list[NDArray[np.float32]]], list[Tensor]]:
    model = ov.Model([ops.result(ops.convert(output, "f32")) for output in outputs], inputs, "one operation")
    request = (
        ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"}).create_infer_request()
    )

    def run(arrays: list[NDArray[np.float32]]) -> list[Tensor]:
        return [torch.from_numpy(np.array(value)) for value in request.infer(arrays).values()]

    return run


def whole(operation: FusedOperation, between: Between) -> Callable[[list[NDArray[np.float32]]], list[Tensor]]:
    x, attended = (ops.parameter([-1, 1, width], ov.Type.f32) for width in (HIDDEN, HEADS))
    return compiled(operation.between(x, between.layer, attended, between.following, WIDTHS), [x, attended])


@wanted
@pytest.mark.parametrize("bias", [False, True])
def test_it_computes_what_torch_computes_for_any_number_of_rows(
    operation: FusedOperation, bias: bool
) -> None:
    between = Between.random(bias)
    run = whole(operation, between)
    for rows in ROWS:
        x, attended = torch.randn(rows, 1, HIDDEN), rounded(torch.randn(rows, 1, HEADS))
        for got, expected in zip(
            run([x.numpy(), attended.numpy()]), between.expected(x, attended), strict=True
        ):
            torch.testing.assert_close(got, expected, rtol=2**-7, atol=0.03)


@wanted
def test_a_row_is_the_same_to_the_last_bit_in_any_company(operation: FusedOperation) -> None:
    run = whole(operation, Between.random(bias=True))
    x, attended = torch.randn(max(ROWS), 1, HIDDEN).numpy(), torch.randn(max(ROWS), 1, HEADS).numpy()
    alone = [run([x[:rows], attended[:rows]]) for rows in ROWS]
    for rows, outputs in zip(ROWS, alone, strict=True):
        for part, of_all in zip(outputs, alone[-1], strict=True):
            assert torch.equal(part, of_all[:rows])


@wanted
def test_logits_are_float32(operation: FusedOperation) -> None:
    torch.manual_seed(3)
    norm, head, x = random_norm(), random_linear(512, HIDDEN, bias=False), torch.randn(9, 1, HIDDEN)
    parameter = ops.parameter([-1, 1, HIDDEN], ov.Type.f32)
    run = compiled([operation.logits(parameter, norm, head)], [parameter])
    torch.testing.assert_close(run([x.numpy()])[0], linear(normed(x, norm), head), rtol=1e-4, atol=1e-2)


@wanted
def test_gates_far_from_zero_stay_numbers(operation: FusedOperation) -> None:
    between = Between.random(bias=False)
    between.layer.feed_forward.up.weight.mul_(64)  # gates of some hundred
    x, attended = torch.randn(20, 1, HIDDEN), torch.zeros(20, 1, HEADS)
    outputs = whole(operation, between)([x.numpy(), attended.numpy()])
    for got, expected in zip(outputs, between.expected(x, attended), strict=True):
        torch.testing.assert_close(got, expected, rtol=2**-7, atol=2**-7 * float(expected.abs().max()))


@pytest.mark.parametrize("name", sorted(TINY.keys() - {"gemma2", "gemma3"}))
@wanted
def test_its_tokens_are_nearly_as_good_as_those_of_float32(
    tiny: Callable[[str], TinyModel], name: str
) -> None:
    model, requests = tiny(name), random_requests(24, seed=8)
    for fused in ("on", "off"):
        answers = Serving(model.openvino_engine(dtype="bfloat16", fused_layers=fused, slots=8)).run(requests)
        model.check_rounding(
            f"bfloat16, openvino, {'fused' if fused == 'on' else 'its own'} layers",
            requests,
            answers,
            BFLOAT16_REGRET,
        )


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where a processor that has what is needed would find it."""
    monkeypatch.setattr(fused_layer, "ROOT", tmp_path)
    monkeypatch.setattr(fused_layer, "processor_flags", lambda: fused_layer.VECTORS)
    fused_layer.library.cache_clear()
    yield tmp_path / "run" / "compiled"
    fused_layer.library.cache_clear()


@pytest.mark.usefixtures("nothing_compiled")
def test_without_a_compiler_it_says_so_and_serves(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.INFO, "gapless.instance"):
        answers = Serving(one.openvino_engine(dtype="bfloat16", fused_layers="on")).run(random_requests(2))
    assert "no fused layers: a C++ compiler would make them" in caplog.text
    assert len(answers) == 2


def test_what_does_not_compile_is_shown_and_left_out(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    source = tmp_path / "fused_layer.cpp"
    source.write_text("this is no C++")
    monkeypatch.setattr(fused_layer, "SOURCE", source)
    assert fused_layer.library() is None
    assert "this is no C++" in caplog.text
    assert list(nothing_compiled.iterdir()) == []


def test_an_older_compiler_makes_what_it_can(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that does not know tiles fails for these; the processor has vectors, too."""
    compiler = tmp_path / "g++-10"
    wants_output = (
        'while [ "$1" != -o ]; do case "$1" in -mamx*) echo "unrecognized option $1" >&2; exit 1 ;; esac;'
        " shift; done"
    )
    compiler.write_text(f'#!/bin/sh\n{wants_output}\necho made >"$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(fused_layer, "kinds_here", lambda: list(Kind))
    made = fused_layer.library()
    assert made is not None
    assert made.name.startswith("fused-layer-vectors-")
    assert [path.name for path in nothing_compiled.iterdir()] == [made.name]


@pytest.fixture
def made(nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A library in its place, made under a umask that lets everybody write."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho made >"$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    umask = os.umask(0)
    try:
        yield fused_layer.compiled(Kind.VECTORS)
    finally:
        os.umask(umask)


def test_nobody_else_may_write_what_is_made_whatever_the_umask(made: Path) -> None:
    assert [oct(path.stat().st_mode & 0o777) for path in (made.parent, made)] == ["0o755", "0o755"]
    made.parent.chmod(0o777)  # as an earlier version left it
    assert fused_layer.compiled(Kind.VECTORS) == made
    assert oct(made.parent.stat().st_mode & 0o777) == "0o755"


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_library_that_others_may_write_is_not_run(
    made: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    made.chmod(mode)
    assert fused_layer.library() is None
    assert "other users may write it" in caplog.text


def test_a_library_of_somebody_else_is_not_run(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layer, "trusted_owners", lambda: {4711})
    assert made.exists()
    assert fused_layer.library() is None


@pytest.mark.usefixtures("nothing_compiled")
def test_another_processor_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fused_layer, "processor_flags", lambda: {"avx2"})
    with caplog.at_level(logging.INFO, "gapless.instance"):
        assert fused_layer.library() is None
    assert "the processor has no avx512_bf16, avx512bw" in caplog.text


def test_layers_that_it_does_not_compute_are_openvinos() -> None:
    layer = Between.random(bias=False).layer
    assert fits(layer)
    float32 = Linear(torch.zeros(HIDDEN, HEADS), None)
    others = [
        replace(layer, parallel=True),
        replace(layer, residual_scale=0.5),
        replace(layer, attention_output_norm=random_norm()),
        replace(layer, feed_forward_norm=None),
        replace(layer, attention_norm=replace(random_norm(), kind=NormKind.LAYER)),
        replace(layer, feed_forward=replace(layer.feed_forward, activation=Activation.GELU)),
        replace(layer, feed_forward=replace(layer.feed_forward, gated=False)),
        replace(layer, attention=replace(layer.attention, output=float32)),
        replace(
            layer, attention=replace(layer.attention, output=random_linear(HIDDEN, HEADS + 8, bias=False))
        ),
    ]
    assert not any(map(fits, others))
