"""How chosen tokens change the counts of their slots, where no kernel does it. Owns nothing; called by the
slot state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.slots.columns import Column
from python_backends.nouns.request import Finish


@dataclass(slots=True)
class PlainRun:
    """Plain greedy rows of one run, all alive: what they appended is booked when something else happens."""

    number: int
    slots: Tensor  # [rows]
    stop_ids: NDArray[np.int64] | None  # [rows, most]; None: they have none
    left: int  # steps before the first one is full
    running: NDArray[np.int64]  # [rows] RUNNING
    tokens: NDArray[np.int64] | None = None  # [rows] the last ones
    num_steps: int = 0  # not booked

    def takes(self, number: int, tokens: NDArray[np.int64]) -> bool:
        stops = self.stop_ids is not None and bool((self.stop_ids == tokens[:, None]).any())
        return number == self.number and self.left > self.num_steps and not stops


def appended(table: Any, stop_ids: Any, slots: Any, tokens: Any) -> tuple[Any, Any]:
    """Tokens and finishes, each [rows], after the rows `slots` of `table` were changed in place. Works on
    tensors and on numpy arrays.
    """
    counts = table[slots]
    live = 1 - counts[:, Column.ENDED]
    stops = (stop_ids[slots] == tokens[:, None]).any(1) & (
        counts[:, Column.OUTPUTS] >= counts[:, Column.MIN_TOKENS]
    )
    full = (counts[:, Column.LENGTH] + 1 >= counts[:, Column.MAX_LENGTH]) & ~stops
    finishes = (stops * int(Finish.STOP) + full * int(Finish.LENGTH)) * live
    counts[:, Column.LAST_TOKEN] += (tokens - counts[:, Column.LAST_TOKEN]) * live
    counts[:, Column.LENGTH : Column.OUTPUTS + 1] += live[:, None]
    counts[:, Column.ENDED] |= finishes != Finish.RUNNING
    table[slots] = counts
    return tokens * live, finishes
