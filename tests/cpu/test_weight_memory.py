"""Packed weights lie one behind the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from python_backends.engine.cpu.weight_memory import (
    ALIGNMENT,
    PIECE_BYTES,
    WeightMemory,
    in_quads,
    packed,
    packed_fours,
)
from python_backends.engine.model.description import Linear


@pytest.mark.parametrize(("dtype", "wide"), [(torch.bfloat16, 2), (torch.float32, 1)])
def test_each_number_has_its_place_in_the_tiles(dtype: torch.dtype, wide: int) -> None:
    """33 outputs: the second panel has one, and zeros."""
    weight = torch.randn(33, 64).to(dtype)
    tiles = packed(weight, WeightMemory())
    assert tiles.shape == (2, 64 // (16 * wide), 2, 16, 16, wide)
    for row, column in ((0, 0), (5, 17), (31, 63), (32, 40)):
        deep, place = divmod(column, 16 * wide)
        found = tiles[row // 32, deep, row % 32 // 16, place // wide, row % 16, place % wide]
        assert found == weight[row, column]
    assert tiles[1].count_nonzero() == weight[32].count_nonzero()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bytes_lie_where_the_numbers_that_they_become_would(dtype: torch.dtype) -> None:
    weight = torch.randint(-127, 128, (33, 64), dtype=torch.int8)
    found = packed(weight, WeightMemory(), dtype=dtype)
    assert found.dtype == torch.int8
    assert torch.equal(found, packed(weight.to(dtype), WeightMemory()).to(torch.int8))


def test_bytes_that_are_multiplied_as_such_lie_four_inputs_of_an_output_together() -> None:
    weight = torch.randint(-127, 128, (33, 64), dtype=torch.int8)
    found = in_quads(weight).reshape(2, 2, 2, 8, 16, 4)
    for row, column in ((0, 0), (5, 63), (31, 33), (32, 40), (17, 7)):
        word = column % 32 // 8 * 2 + column // 2 % 2
        byte = column // 4 % 2 + column % 2 * 2
        place = (row // 32, column // 32, row % 32 // 16, word, row % 16, byte)
        assert found[place] == weight[row, column]


@pytest.mark.parametrize(("kept", "num_bytes"), [(torch.half, 640), (torch.float32, 768)], ids=str)
def test_numbers_of_four_bits_have_their_places_in_words_before_scales_and_minima(
    kept: torch.dtype, num_bytes: int
) -> None:
    codes = torch.randint(0, 16, (33, 64), dtype=torch.uint8)
    scale, minimum = torch.randn(33, 2).half(), torch.randn(33, 2).half()
    found = packed_fours(Linear(codes, None, scale, minimum), WeightMemory(), kept)
    assert found.shape == (2, 2, num_bytes)
    words = found[..., :512].contiguous().view(torch.int32).reshape(2, 2, 4, 2, 16)
    of_groups = found[..., 512:].contiguous().view(kept).reshape(2, 2, 2, 2, 16)
    for row, column in ((0, 0), (5, 63), (31, 33), (32, 40), (17, 7)):
        panel, group, tile, output = row // 32, column // 32, row % 32 // 16, row % 16
        word = int(words[panel, group, column % 32 // 8, tile, output])
        bit = 4 * (column % 8 // 2) + 16 * (column % 2)
        assert word >> bit & 15 == codes[row, column]
        assert of_groups[panel, group, 0, tile, output] == scale[row, group]
        assert of_groups[panel, group, 1, tile, output] == minimum[row, group]


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
