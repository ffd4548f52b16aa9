"""Which cache of the processor the fused layers fetch weights into: both are tried at each start, in 0.1 s,
and the faster one is used.

On an AMD of the fourth Zen generation the second cache gives products with 16 rows in 0.7 of the time, on one
of the fifth the first cache 0.86 (docs/notebook/cpu_steps.md). Results do not depend on it. Called by
the OpenVINO engine. Tested in tests/cpu/test_fused_layer.py.
"""

from __future__ import annotations

import ctypes
import logging
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger("gapless.instance")

CACHES = (1, 2)
ROWS, DEPTH = 16, 1024  # of the products that are tried
PANEL = 32 * DEPTH  # values of a weight that are multiplied together
PIECE = 64  # panels: 4 MiB, more than a core's caches hold
NUM_PIECES = 24  # together more than a processor's last cache holds


def use_faster_cache(library: Path) -> None:
    """By products whose weights come from memory, with each cache in turn; the medians decide."""
    trial = Trial(library)
    seconds: dict[int, list[float]] = {cache: [] for cache in CACHES}
    for piece in range(NUM_PIECES):
        cache = CACHES[piece % 2]
        seconds[cache].append(trial.multiply(cache, piece))
    medians = {cache: float(np.median(seconds[cache])) for cache in CACHES}
    fastest, slowest = sorted(CACHES, key=medians.__getitem__)
    trial.fetch_into(fastest)
    log.info(
        "fused layers fetch weights into cache %d of the processor: %.2f ms instead of %.2f",
        fastest,
        1000 * medians[fastest],
        1000 * medians[slowest],
    )


class Trial:
    def __init__(self, library: Path) -> None:
        functions = ctypes.CDLL(str(library))
        self.fetch_into = functions.gapless_fetch_into
        self._multiply = functions.gapless_multiply
        # torch's memory begins with a cache line
        self.x = torch.zeros(ROWS, DEPTH, dtype=torch.bfloat16)
        self.weights = torch.ones(NUM_PIECES, PIECE, PANEL, dtype=torch.bfloat16)
        self.sums = torch.zeros(PIECE, ROWS, 32)

    def multiply(self, cache: int, piece: int) -> float:
        """Returns seconds."""
        self.fetch_into(cache)
        began_s = time.perf_counter()
        self._multiply(_of(self.x), ROWS, DEPTH, _of(self.weights[piece]), PIECE, _of(self.sums))
        return time.perf_counter() - began_s


def _of(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
