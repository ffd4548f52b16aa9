"""How many tokens a process of `coserving` has trained by when, and how much memory it takes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from python_backends.finetuning.cursor import PackCursor
from python_backends.nouns.training import Tile


@dataclass(frozen=True, slots=True)
class Marks:
    """How many tokens had had a forward pass, and a backward pass through all layers, at each time."""

    times_s: list[float]
    forward: list[float]
    trained: list[float]

    def rates(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """Forward and trained tokens a second between two times."""
        bounds = [begin_s, end_s]
        counts = [np.interp(bounds, self.times_s, each) for each in (self.forward, self.trained)]
        forward, trained = (float(each[1] - each[0]) / (end_s - begin_s) for each in counts)
        return forward, trained


class Counts:
    """Of this process."""

    def __init__(self) -> None:
        self._forward = self._trained = 0.0
        self._marks: list[tuple[float, float, float]] = []

    def add(self, forward: float, trained: float) -> None:
        self._forward += forward
        self._trained += trained
        self._mark()

    def take(self) -> Marks:
        """Those since the last time."""
        self._mark()
        marks, self._marks = self._marks, []
        return Marks(*np.array(marks).T.tolist())

    def _mark(self) -> None:
        self._marks.append((time.perf_counter(), self._forward, self._trained))


def counted(num_layers: int) -> Counts:
    """Counts the tiles that all cursors of this process give out, where each of `num_layers` layers is
    trained. Called once.
    """
    counts, take_forward, take_backward = Counts(), PackCursor.take_forward, PackCursor.take_backward

    def forward(cursor: PackCursor, most: int) -> Tile:
        found = take_forward(cursor, most)
        counts.add((found.last - found.first) / num_layers, 0)
        return found

    def backward(cursor: PackCursor, most: int) -> Tile:
        found = take_backward(cursor, most)
        counts.add(0, (found.last - found.first) / num_layers)
        return found

    mock.patch.multiple(PackCursor, take_forward=forward, take_backward=backward).start()
    return counts


def peak_rss_gib() -> float:
    """The largest resident set of this process since `clear_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20
