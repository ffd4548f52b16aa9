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


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_tiles_and_the_loss_cover_a_pack_once_in_order(most: int) -> None:
    """Forward layer by layer from the first token, backward from the last one, down to the first layer that
    is trained.
    """
    cursor, forward, losses, backward = PackCursor(10, 4, first_layer=1), [], [], []
    while not cursor.is_forward_done:
        assert cursor.forward_first == (forward[-1].last % 10 if forward else 0)
        forward.append(cursor.take_forward(most))
    while not cursor.is_loss_done:
        losses.append(cursor.take_loss(most))
    while not cursor.is_done:
        assert cursor.backward_last == (backward[-1].first or 10 if backward else 10)
        backward.append(cursor.take_backward(most))
    tokens = [(each.layer, token) for each in forward for token in range(each.first, each.last)]
    assert tokens == [(layer, token) for layer in range(4) for token in range(10)]
    assert [token for first, last in losses for token in range(first, last)] == list(range(10))
    tokens = [(each.layer, token) for each in backward for token in reversed(range(each.first, each.last))]
    assert tokens == [(layer, token) for layer in (3, 2, 1) for token in reversed(range(10))]
    assert all(each.last - each.first <= most for each in forward + backward)


def test_without_a_layer_that_learns_a_pack_ends_with_its_loss() -> None:
    cursor = PackCursor(10, 2, first_layer=2)
    for _ in range(2):
        cursor.take_forward(10)
    assert not cursor.is_done
    cursor.take_loss(10)
    assert cursor.is_done


def test_no_loss_before_the_forward_pass_and_no_backward_pass_before_the_loss() -> None:
    cursor = PackCursor(10, 2)
    cursor.take_forward(10)
    with pytest.raises(ValueError, match="not computed forward"):
        cursor.take_loss(3)
    cursor.take_forward(10)
    with pytest.raises(ValueError, match="the forward pass is done"):
        cursor.take_forward(3)
    cursor.take_loss(9)
    with pytest.raises(ValueError, match="no loss"):
        cursor.take_backward(3)
    cursor.take_loss(9)
    with pytest.raises(ValueError, match="or done"):
        cursor.take_loss(1)
    for _ in range(2):
        cursor.take_backward(10)
    with pytest.raises(ValueError, match="or done"):
        cursor.take_backward(1)
    with pytest.raises(ValueError, match="at least 1"):
        PackCursor(0, 2)
