"""How many rows a step is given so that there are few sizes of steps.

For each new number of rows, the libraries of a CPU generate code: this takes the time of a step, and memory
that is never freed (docs/notebook/cpu_steps.md). A processor with tiles (AMX) also multiplies whole tiles. On
one without tiles each row costs its time, so sizes are nearer to each other there (docs/notebook/peers.md).
Steps that are cut to fit have a multiple of the same number of rows (`ModelLimits.row_multiple`).

Rows of padding belong to the dead slot (see slot state), and their results are not read. Layers in C++ have
none: no code is generated for them.
"""

from __future__ import annotations

from python_backends.linux.processor import processor_flags

WITH_TILES, WITHOUT_TILES = 32, 8  # rows: large steps have a multiple of it
ROW_MULTIPLE = WITH_TILES if "amx_tile" in processor_flags() else WITHOUT_TILES


def padded(num_rows: int, row_multiple: int = ROW_MULTIPLE) -> int:
    """The rows of a step with `num_rows` at least: four sizes an octave, then multiples of `row_multiple`."""
    size = min(max(1 << (num_rows - 1).bit_length() >> 3, 1), row_multiple)
    return -(-num_rows // size) * size
