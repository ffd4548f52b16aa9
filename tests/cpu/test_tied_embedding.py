"""Packed weights lie one behind the other, and an embedding that is the head's weight too is held once."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset15 as ops

from python_backends.engine.openvino.tied_embedding import TiedEmbedding
from python_backends.engine.openvino.weight_memory import ALIGNMENT, PIECE_BYTES, WeightMemory, packed


@pytest.mark.parametrize(("vocab_size", "hidden"), [(32, 32), (96, 64), (512, 160)])
def test_the_rows_of_tokens_are_read_out_of_the_packed_weight(vocab_size: int, hidden: int) -> None:
    weight = torch.randn(vocab_size, hidden).bfloat16()
    tied = TiedEmbedding(weight, WeightMemory())
    tokens = ops.parameter([-1], ov.Type.i32)
    model = ov.Model([ops.result(tied.rows(tokens))], [tokens], "rows")
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    asked = np.random.default_rng(0).permutation(vocab_size).astype(np.int32)
    (rows,) = compiled([asked]).values()
    assert torch.equal(torch.from_numpy(rows), weight.float()[torch.from_numpy(asked).long()])
    assert torch.equal(tied.unpacked(), weight)


def test_packed_weights_lie_one_behind_the_other() -> None:
    memory = WeightMemory()
    weights = [torch.randn(32, columns).bfloat16() for columns in (32, 96, 64)]
    places = [packed(weight, memory).data_ptr() for weight in weights]
    assert np.diff(places).tolist() == [32 * 32 * 2, 32 * 96 * 2]
    assert places[0] % ALIGNMENT == 0


def test_a_weight_that_is_larger_than_a_piece_has_its_own_and_is_aligned() -> None:
    memory = WeightMemory()
    odd = memory.copied(torch.ones(3, dtype=torch.uint8))
    large = memory.copied(torch.ones(PIECE_BYTES + 1, dtype=torch.uint8))
    assert large.data_ptr() % ALIGNMENT == 0
    assert large.all()
    assert odd.tolist() == [1, 1, 1]
    after = memory.copied(torch.zeros(2, dtype=torch.uint8))
    assert large[-1] == 1
    assert after.tolist() == [0, 0]


def test_gate_and_up_are_packed_sixteen_rows_of_each_in_turn() -> None:
    weight = torch.randn(64, 32).bfloat16()
    in_turn = torch.cat([weight[:16], weight[32:48], weight[16:32], weight[48:]])
    assert torch.equal(packed(weight, WeightMemory(), gated=True), packed(in_turn, WeightMemory()))
