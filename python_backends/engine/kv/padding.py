"""How many rows a step is given so that there are few sizes of steps.

For each new number of rows, the libraries of a CPU generate code: this takes 6 to 16 ms, and 1 to 2 MiB that
are never freed. They also multiply in tiles: on a processor with tiles of its own, 196 rows take longer than
224. Rows of padding belong to the dead slot (see slot state), and their results are not read. Called by both
engines of our own.
"""

from __future__ import annotations

MOST_APART = 32  # rows, from one size to the next


def padded(num_rows: int) -> int:
    """The rows of a step with `num_rows` at least: four sizes an octave, then multiples of 32."""
    size = min(max(1 << (num_rows - 1).bit_length() >> 3, 1), MOST_APART)
    return -(-num_rows // size) * size
