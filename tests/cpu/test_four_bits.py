"""Weights of 4 bits by group: what has them already keeps its numbers, others are rounded, and answers are
those of these numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from python_backends.checkpoint.gguf.groups import groups_of
from python_backends.checkpoint.source import Stored
from python_backends.engine.cpu.library import library
from python_backends.engine.model.four_bits import GROUP, LARGEST, in_groups, numbers
from tests.support.rounded_head import with_rounded_head, with_rounded_layers
from tests.support.tiny_models import BY_LAYERS, INT8_REGRET, Serving, TinyModel, random_requests

wanted = pytest.mark.skipif(library() is None, reason="wants a C++ compiler, and AVX2")
FOUR_BITS = ("Q4_0", "Q4_1")
KEPT = (*FOUR_BITS, "Q2_K", "Q3_K", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0")


def drawn(outputs: int = 64, inputs: int = 128) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs))


def rounded(weight: Tensor) -> Tensor:
    return numbers(*in_groups(weight))


@pytest.mark.parametrize("name", FOUR_BITS)
def test_blocks_of_gguf_stay_what_they_are_to_the_last_bit(name: str) -> None:
    """Also where a block does not have all of the 16 numbers."""
    kind = gguf.GGMLQuantizationType[name]
    weight = drawn()
    weight[3] = weight[3].abs()
    weight[7, :64] = 0
    weight[9] *= 1e-3
    own = torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), kind), kind))
    assert not torch.equal(own, weight)
    assert torch.equal(rounded(own), own)


@pytest.mark.parametrize("name", KEPT)
def test_what_a_gguf_file_has_in_few_bits_is_read_so_and_gives_the_same_numbers(
    name: str, tmp_path: Path
) -> None:
    """Of any bytes but those of scales, which are numbers."""
    kind = gguf.GGMLQuantizationType[name]
    block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(3).integers(0, 256, (64 * 512 // block, num_bytes), np.uint8)
    for place in (1, 3, 81, 83, 109, 209):  # of scales and minima, or some codes
        blocks[:, place : place + 1] &= 0x3F
    content = blocks.reshape(64, -1)
    path = tmp_path / "blocks"
    path.write_bytes(b"before" + content.tobytes())
    found = groups_of(Stored((64, 512), name, path, 6, content.size))
    assert found is not None
    assert (found.codes.shape[1] // found.scales.shape[1] == 16) == (found.codes.dtype == torch.int8)
    minima = torch.zeros_like(found.scales) if found.minima is None else found.minima
    given = numbers(found.codes, found.scales, minima)
    assert torch.equal(given, torch.from_numpy(gguf.dequantize(content, kind)))
    assert groups_of(Stored((64, 512), "F16", path, 6, content.size)) is None


@pytest.mark.parametrize("has_zeros", [True, False])
def test_groups_of_float16_stay_what_they_are_as_near_as_float16_can_say_it(has_zeros: bool) -> None:
    """As AWQ and GPTQ have them, in groups of 128."""
    made = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 16, (64, 2, 128), generator=made)
    zeros = torch.randint(4, 12, (64, 2, 1), generator=made) if has_zeros else 8
    scales = (torch.rand(64, 2, 1, generator=made) * 0.01 + 0.001).half()
    own = ((codes - zeros).half() * scales).flatten(1).float()
    step = scales.float().expand(-1, -1, 128).flatten(1)
    assert ((rounded(own) - own).abs() <= step * 16 / 1024).all()


@pytest.mark.parametrize("width", [128, 48])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rounded_weight_is_within_half_a_step_of_the_weight(dtype: torch.dtype, width: int) -> None:
    weight = drawn(inputs=width).to(dtype)
    codes, scales, minima = in_groups(weight)
    assert scales.shape == minima.shape == (64, width // (GROUP if width % GROUP == 0 else 16))
    assert int(codes.max()) == LARGEST
    error = (numbers(codes, scales, minima) - weight.float()).abs().unflatten(-1, (scales.shape[1], -1))
    assert (error.amax(-1) <= scales.float().abs() * 0.52).all()  # scales and minima are rounded, too


def test_what_is_no_number_stays_none() -> None:
    weight = drawn()
    weight[2, 5], weight[3, 40] = float("nan"), float("inf")
    found = rounded(weight)
    assert not found[2, :GROUP].isfinite().any()
    assert not found[3, GROUP : 2 * GROUP].isfinite().any()
    assert found.isfinite().sum() == found.numel() - 2 * GROUP


@pytest.mark.parametrize("kind", ["torch", *(["layers"] if library() is not None else [])])
def test_answers_in_float32_are_transformers_answers_with_the_rounded_weights(
    tiny: Callable[[str], TinyModel], kind: str, tmp_path: Path
) -> None:
    for name in ("gemma3", "gpt_neox", "llama_tied") if kind == "torch" else sorted(BY_LAYERS):
        model, requests = tiny(name), random_requests(4, seed=3)
        engine = model.engine_of(kind, weights="int4", dtype="float32")
        answers = Serving(engine, token_budget=40).run(requests)
        changed = with_rounded_layers(model.model, rounded)
        changed = with_rounded_head(changed) if kind == "layers" else changed
        other = TinyModel(tmp_path / name, changed, model.agreement)
        other.check_all(requests, answers)


@wanted
def test_tokens_in_bfloat16_are_nearly_as_good_as_those_of_the_same_weights_in_float32(
    tiny: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    model, requests = tiny("llama_tied"), random_requests(8, seed=8)
    answers = Serving(model.engine_of("layers", weights="int4", dtype="bfloat16")).run(requests)
    changed = with_rounded_head(with_rounded_layers(model.model, rounded))
    other = TinyModel(tmp_path, changed, model.agreement)
    other.check_rounding("4 bits, bfloat16", requests, answers, INT8_REGRET)
