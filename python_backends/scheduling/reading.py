"""Of which rows a step reads hidden states. In a run it is known beforehand in which step one is read again,
so that the others look at no row.

Called by the plan writer.
"""

from __future__ import annotations

import numpy as np

from python_backends.nouns.request import Ids
from python_backends.nouns.stages import is_read, until_read
from python_backends.nouns.step import NO_ROWS
from python_backends.scheduling.state.slots import Rows, SlotTable


class Reading:
    def __init__(self, slots: SlotTable, gives_states: bool) -> None:
        """`gives_states`: the engine does; otherwise none is read."""
        self._slots, self._gives_states = slots, gives_states
        self._num_steps = 0  # coming steps of the run in which none is read

    def of_step(self, slots: Ids) -> Ids:
        """[n] of `slots`: those whose next spans end with a token whose state is read. Before they are
        planned.
        """
        if not self._gives_states:
            return NO_ROWS
        return np.flatnonzero(is_read(self._slots.num_written(slots))).astype(np.int32)

    def begin_run(self, rows: Rows) -> None:
        """The first step over `rows` is planned."""
        if self._gives_states:
            self._num_steps = until_read(self._slots.num_written(rows))

    def of_run(self, rows: Rows) -> Ids:
        """The same as `of_step` in the next step of the run."""
        if not self._gives_states:
            return NO_ROWS
        if self._num_steps:
            self._num_steps -= 1
            return NO_ROWS
        written = self._slots.num_written(rows)
        self._num_steps = until_read(written + np.int32(1))
        return np.flatnonzero(is_read(written)).astype(np.int32)
