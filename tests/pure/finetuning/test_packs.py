"""Order, mini-batches, packs, and where a pack stands."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.finetuning.cursor import PackCursor
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.packs import mini_batch, order, packs, steps_a_pass
from python_backends.nouns.training import NO_LABEL


def example(length: int, first: int = 0) -> Example:
    ids = np.arange(first, first + length, dtype=np.int32)
    return Example(ids, np.arange(length) >= length // 2)


def test_every_pass_has_every_example_once_in_an_order_of_its_own() -> None:
    steps = steps_a_pass(10, 4)
    passes = [[mini_batch(10, 4, 7, each * steps + step) for step in range(steps)] for each in range(2)]
    for batches in passes:
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert sorted(np.concatenate(batches).tolist()) == list(range(10))
    assert np.concatenate(passes[0]).tolist() != np.concatenate(passes[1]).tolist()
    assert np.array_equal(order(10, 7, 1), np.concatenate(passes[1]))
    assert not np.array_equal(order(10, 8, 1), order(10, 7, 1))


def test_packs_hold_what_fits_in_order_and_a_long_sequence_alone() -> None:
    made = list(packs([example(5), example(4), example(30), example(3)], 10))
    assert [pack.bounds for pack in made] == [(0, 5, 9), (0, 30), (0, 3)]


def test_a_label_is_the_next_learned_token_of_the_same_sequence() -> None:
    (pack,) = packs([example(4, 10), example(3, 20)], 10)
    assert pack.labels.tolist() == [NO_LABEL, 12, 13, NO_LABEL, 21, 22, NO_LABEL]
    assert pack.num_labels == 4
    assert pack.pieces(3, 6) == [(0, 3, 4), (1, 4, 6)]


@pytest.mark.parametrize("window", [1, 3, 100])
@pytest.mark.parametrize("tile", [1, 4, 100])
def test_windows_and_tiles_cover_a_pack_once_in_order(window: int, tile: int) -> None:
    cursor = PackCursor(10, 4, first_layer=1)
    windows, losses, tiles = [], [], []
    while not cursor.is_computed:
        windows.append(cursor.take_window(window))
        while cursor.is_loss_due:
            losses.append(cursor.take_loss(tile))
            assert losses[-1][1] <= windows[-1][1]
    while not cursor.is_done:
        tiles.append(cursor.take_backward(tile))
    for pieces in (windows, losses):
        assert [token for first, last in pieces for token in range(first, last)] == list(range(10))
    backward = [(each.layer, token) for each in tiles for token in reversed(range(each.first, each.last))]
    assert backward == [(layer, token) for layer in (3, 2, 1) for token in reversed(range(10))]


@pytest.mark.parametrize("most", [1, 3, 10, 100])
def test_forward_tiles_cover_a_pack_layer_by_layer_before_its_loss(most: int) -> None:
    cursor, tiles = PackCursor(10, 4, first_layer=1), []
    while not cursor.is_loss_due:
        assert not cursor.is_computed
        assert cursor.forward_first == (tiles[-1].last % 10 if tiles else 0)
        tiles.append(cursor.take_forward(most))
    forward = [(each.layer, token) for each in tiles for token in range(each.first, each.last)]
    assert forward == [(layer, token) for layer in range(4) for token in range(10)]
    with pytest.raises(ValueError, match="forward"):
        cursor.take_forward(most)
    assert cursor.take_loss(7) == (0, 7)
    with pytest.raises(ValueError, match="tile"):
        cursor.take_backward(1)
    assert cursor.take_loss(7) == (7, 10)
    assert cursor.take_backward(100).layer == 3


def test_a_pack_has_forward_tiles_or_windows() -> None:
    cursor = PackCursor(10, 4)
    cursor.take_forward(3)
    with pytest.raises(ValueError, match="window"):
        cursor.take_window(3)
    cursor = PackCursor(10, 4)
    cursor.take_window(3)
    with pytest.raises(ValueError, match="windows"):
        cursor.take_forward(3)


def test_no_tile_before_the_last_window_and_its_loss_and_no_window_after_them() -> None:
    cursor = PackCursor(10, 2)
    with pytest.raises(ValueError, match="loss"):
        cursor.take_loss(3)
    cursor.take_window(9)
    with pytest.raises(ValueError, match="window"):
        cursor.take_window(3)
    cursor.take_loss(9)
    with pytest.raises(ValueError, match="tile"):
        cursor.take_backward(3)
    cursor.take_window(9)
    with pytest.raises(ValueError, match="tile"):
        cursor.take_backward(3)
    cursor.take_loss(9)
    with pytest.raises(ValueError, match="window"):
        cursor.take_window(3)
    with pytest.raises(ValueError, match="at least 1"):
        PackCursor(0, 2)
