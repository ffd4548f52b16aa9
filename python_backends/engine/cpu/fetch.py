"""Which cache of the processor the layers fetch weights into: both are tried at each start, in 0.1 s,
and the faster one is used.

The second cache is faster on an AMD Zen 4, the first one on a Zen 5 (docs/notebook/cpu_steps.md). Results do
not depend on the cache. Called before weights are read: the trial's own take 96 MiB for a while.
"""

from __future__ import annotations

import ctypes
import logging
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from python_backends.engine.cpu.weight_memory import PANEL

log = logging.getLogger("gapless.instance")

CACHES = (1, 2)
ROWS, DEPTH = 16, 512  # of the products that are tried, of float32: every processor multiplies it
PIECE = 64  # panels: 4 MiB, more than a core's caches hold
FLOAT32 = 0  # layers.h
NUM_PIECES = 24  # together more than a processor's last cache holds


@cache
def use_faster_cache(library: Path) -> None:
    """By products whose weights come from memory, with each cache in turn; the medians decide. Tried once in
    a process.
    """
    trial = Trial(library)
    seconds: dict[int, list[float]] = {number: [] for number in CACHES}
    for piece in range(NUM_PIECES):
        number = CACHES[piece % 2]
        seconds[number].append(trial.multiply(number, piece))
    medians = {number: float(np.median(seconds[number])) for number in CACHES}
    fastest, slowest = sorted(CACHES, key=medians.__getitem__)
    trial.fetch_into(fastest)
    log.info(
        "the layers fetch weights into cache %d of the processor: %.2f ms instead of %.2f",
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
        self.x = torch.zeros(ROWS, DEPTH)
        self.weights = torch.ones(NUM_PIECES, PIECE, PANEL * DEPTH)
        self.sums = torch.zeros(PIECE, ROWS, PANEL)

    def multiply(self, number: int, piece: int) -> float:
        """The seconds that it takes with the cache of this number."""
        self.fetch_into(number)
        began_s = time.perf_counter()
        self._multiply(_of(self.x), ROWS, DEPTH, _of(self.weights[piece]), PIECE, _of(self.sums), FLOAT32)
        return time.perf_counter() - began_s


def _of(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
