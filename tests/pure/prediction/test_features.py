"""The 21 numbers that Magnus predicts from, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.prediction.features import (
    INPUT_GROUPS,
    INSTRUCTION_GROUPS,
    NUM_FEATURES,
    compress,
    features,
)


def test_an_input_of_ones_in_labses_768_dimensions_becomes_sixteen_times_the_root_of_48() -> None:
    assert compress(np.ones((1, 768), np.float32), INPUT_GROUPS) == pytest.approx(
        np.full((1, 16), 6.928), abs=5e-4
    )


def test_an_instruction_of_ones_becomes_four_times_the_root_of_192() -> None:
    assert compress(np.ones((1, 768), np.float32), INSTRUCTION_GROUPS) == pytest.approx(
        np.full((1, 4), 13.856), abs=5e-4
    )


def test_groups_are_neighbours_and_texts_stay_apart() -> None:
    embeddings = np.arange(2 * 384, dtype=np.float32).reshape(2, 384)
    found = compress(embeddings, INPUT_GROUPS)
    assert found.shape == (2, 16)
    assert found[1, 3] == pytest.approx(embeddings[1, 72:96].sum() / np.sqrt(24))


def test_the_21_numbers_are_the_instruction_the_input_and_its_length_in_tokens() -> None:
    instructions, inputs = np.zeros((3, 384), np.float32), np.ones((3, 384), np.float32)
    found = features(instructions, inputs, np.array([7, 8, 9]))
    assert found.shape == (3, NUM_FEATURES) == (3, 21)
    assert found.dtype == np.float32
    assert not found[:, :4].any()
    assert found[:, 4:20] == pytest.approx(np.sqrt(24))
    assert found[:, 20].tolist() == [7, 8, 9]
