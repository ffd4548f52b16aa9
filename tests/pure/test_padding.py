"""Steps have few sizes."""

from __future__ import annotations

from python_backends.engine.kv.padding import padded


def test_steps_are_padded_to_few_sizes_and_small_ones_hardly() -> None:
    sizes = {num_rows: padded(num_rows) for num_rows in range(1, 513)}
    assert all(num_rows <= size <= 1.25 * num_rows for num_rows, size in sizes.items())
    assert all(sizes[num_rows] == num_rows for num_rows in range(1, 9))
    assert len(set(sizes.values())) == 8 + 4 * 4 + 12  # up to 8, four an octave up to 128, then every 32
