"""Steps have few sizes."""

from __future__ import annotations

import pytest

from python_backends.engine.kv.padding import WITH_TILES, WITHOUT_TILES, padded


@pytest.mark.parametrize(
    ("row_multiple", "count"),
    [(WITH_TILES, 8 + 4 * 4 + 12), (WITHOUT_TILES, 8 + 4 * 3 + 56)],
)
def test_steps_are_padded_to_few_sizes_and_small_ones_hardly(row_multiple: int, count: int) -> None:
    """Up to 8 rows none; then four sizes an octave, and from 128 or 64 rows on every 32 or 8."""
    sizes = {num_rows: padded(num_rows, row_multiple) for num_rows in range(1, 513)}
    assert all(num_rows <= size <= 1.25 * num_rows for num_rows, size in sizes.items())
    assert all(sizes[num_rows] == num_rows for num_rows in range(1, 9))
    assert len(set(sizes.values())) == count
