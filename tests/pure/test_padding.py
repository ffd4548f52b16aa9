"""Steps have few sizes."""

from __future__ import annotations

import pytest

from python_backends.engine.kv.padding import APART_WITH_TILES, APART_WITHOUT, padded


@pytest.mark.parametrize(
    ("most_apart", "count"),
    [(APART_WITH_TILES, 8 + 4 * 4 + 12), (APART_WITHOUT, 8 + 4 * 3 + 56)],
)
def test_steps_are_padded_to_few_sizes_and_small_ones_hardly(most_apart: int, count: int) -> None:
    """Up to 8 rows none; then four sizes an octave, and from 128 or 64 rows on every 32 or 8."""
    sizes = {num_rows: padded(num_rows, most_apart) for num_rows in range(1, 513)}
    assert all(num_rows <= size <= 1.25 * num_rows for num_rows, size in sizes.items())
    assert all(sizes[num_rows] == num_rows for num_rows in range(1, 9))
    assert len(set(sizes.values())) == count
