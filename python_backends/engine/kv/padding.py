"""How many rows a step is given so that there are few sizes of steps.

For each new number of rows, the libraries of a CPU generate code: this takes the time of a step, and memory
that is never freed (docs/notebook/cpu_steps.md). A processor with tiles (AMX) also multiplies whole tiles. On
one without tiles each row costs its time, so sizes are nearer to each other there (docs/notebook/peers.md).
Rows of padding belong to the dead slot (see slot state), and their results are not read. Called by both
engines of our own; not for fused layers, for which no code is generated.
"""

from __future__ import annotations

from python_backends.linux.processor import processor_flags

APART_WITH_TILES, APART_WITHOUT = 32, 8  # rows from one size to the next, at most
MOST_APART = APART_WITH_TILES if "amx_tile" in processor_flags() else APART_WITHOUT


def padded(num_rows: int, most_apart: int = MOST_APART) -> int:
    """The rows of a step with `num_rows` at least: four sizes an octave, then multiples of `most_apart`."""
    size = min(max(1 << (num_rows - 1).bit_length() >> 3, 1), most_apart)
    return -(-num_rows // size) * size
