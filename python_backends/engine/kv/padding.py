"""How many rows a step is given so that there are few sizes of steps.

A product with a number of rows that was never there costs the libraries of a CPU 6 to 16 ms a step and 1 to 2
MiB for good: they write code for it. And they multiply in tiles: on a processor with tiles of its own, 196
rows take longer than 224. Rows of padding belong to the dead slot (see slot state), and their results are not
read. Called by both engines of our own.
"""

from __future__ import annotations

MOST_APART = 32  # rows, from one size to the next


def padded(num_rows: int) -> int:
    """The rows of a step with `num_rows` at least: four sizes an octave, then multiples of 32."""
    size = min(max(1 << (num_rows - 1).bit_length() >> 3, 1), MOST_APART)
    return -(-num_rows // size) * size
