"""Passes tritonserver's log on, in bounds: a fault that repeats itself must not fill a disk.

tritonserver writes a line for each connection that it can't accept: 180,000 a second when no more files may
be open. Called by the server.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import IO

NOISE = ("Signal (2) received",)
WITHOUT_GPU = (
    "CUDA driver version is insufficient",
    "CudaDriverHelper",
    "NVML",
    "DCGM",
    "pinned memory pool",
    "pinned system memory",
)
BURST = 1000  # lines that may come at once
LINES_PER_S = 1.0  # later ones
LONGEST_LINE = 4096  # characters; a longer one is several lines
SAY_EVERY_S = 10.0  # how often lines of a flood are counted in the log


def relay(log: IO[str]) -> None:
    """Passes lines on until the server has ended."""
    bounded = BoundedLog(_write)
    with log:
        while line := log.readline(LONGEST_LINE):
            bounded.add(line.rstrip("\n"))
    bounded.say()


class BoundedLog:
    """Passes lines to `write`. Leaves out those that every machine without a GPU has, and those that equal
    the one before. Of others BURST may come at once, and LINES_PER_S later. Says how many it left out.
    """

    def __init__(self, write: Callable[[str], None], now_s: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._now_s = now_s
        self._last = ""
        self._repeats = 0
        self._left_out = 0
        self._said_s = self._filled_s = now_s()
        self._allowance = float(BURST)

    def add(self, line: str) -> None:
        if any(noise in line for noise in (*NOISE, *WITHOUT_GPU)):
            return
        if line == self._last:
            self._repeats += 1
        else:
            self._add_another(line)
        if self._now_s() - self._said_s >= SAY_EVERY_S:
            self.say()

    def say(self) -> None:
        """Writes how many lines were left out since it was last said."""
        if self._repeats:
            self._write(f"gapless: the line above came {self._repeats} times more")
        if self._left_out:
            self._write(f"gapless: {self._left_out} further lines of tritonserver were left out: too many")
        self._repeats = self._left_out = 0
        self._said_s = self._now_s()

    def _add_another(self, line: str) -> None:
        now_s = self._now_s()
        self._allowance = min(BURST, self._allowance + (now_s - self._filled_s) * LINES_PER_S)
        self._filled_s = now_s
        if self._allowance < 1:
            self._left_out += 1
            return
        self._allowance -= 1
        if self._repeats or self._left_out:
            self.say()
        self._last = line
        self._write(line)


def _write(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal is gone; the stream is closed
        sys.stderr.write(f"{line}\n")
