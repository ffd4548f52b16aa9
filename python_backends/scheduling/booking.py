"""Books the tokens of a step: into the slot table, and as the streams know them.

Owns what stays the same while the same rows get a token at every step: whose they are, and after how many steps one of them is full.
Such a run costs a step no look at each row. Called by the slot scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Finish, Ids
from python_backends.nouns.step import StepOutput, StepPlan, Tokens
from python_backends.scheduling.state.slots import Rows, SlotTable, rows_of


@dataclass(slots=True)
class _Run:
    """Steps of the very same rows [n]."""

    slots: Ids  # as they stand in the plans
    rows: Rows
    request_ids: NDArray[np.int64]
    epochs: Ids
    firsts: Ids  # output indices of the first step's tokens
    num_unfull: int  # steps that fill none of them
    num_booked: int = 0  # steps


class Booking:
    def __init__(self, slots: SlotTable) -> None:
        self._table = slots
        self._run: _Run | None = None

    def book_all(self, plan: StepPlan, output: StepOutput) -> tuple[Tokens, list[int]]:
        """Of a plan of decode rows that are all still there. The tokens, and the slots that have ended."""
        if self._run is None or plan.slots is not self._run.slots:
            self._run = self._begin(plan.slots, rows_of(plan.slots))
        return self._book(self._run, output)

    def book_current(self, slots: Ids, epochs: Ids, output: StepOutput) -> tuple[Tokens, list[int]]:
        """Of these rows [sampled] those whose slot has not changed hands since."""
        current = (self._table.epochs[slots] == epochs) & self._table.live[slots]
        log_probs = None if output.log_probs is None else output.log_probs.kept(current)
        kept = replace(output, tokens=output.tokens[current], finishes=output.finishes[current], log_probs=log_probs)
        slots, self._run = slots[current], None
        return self._book(self._begin(slots, slots), kept)

    def _begin(self, slots: Ids, rows: Rows) -> _Run:
        """`slots` [n], and the same as an index."""
        table = self._table
        known = table.known[rows]
        num_unfull = int((table.limits[rows] - known).min()) - 1 if len(slots) else 0
        request_ids, epochs = table.request_ids[rows].copy(), table.stream_epochs[rows].copy()
        return _Run(slots, rows, request_ids, epochs, known - table.prompts[rows], num_unfull)

    def _book(self, run: _Run, output: StepOutput) -> tuple[Tokens, list[int]]:
        finishes = output.finishes
        self._table.append(run.slots, output.tokens)
        if run.num_booked >= run.num_unfull:
            finishes = self._with_full_ones(run, finishes)
        tokens = Tokens(run.request_ids, run.epochs, run.firsts, output.tokens, finishes, output.log_probs, run.num_booked)
        run.num_booked += 1
        return tokens, run.slots[finishes != Finish.RUNNING].tolist() if finishes.any() else []

    def _with_full_ones(self, run: _Run, finishes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Our limit may be lower than the engine's."""
        full = self._table.known[run.rows] >= self._table.limits[run.rows]
        return np.where(full & (finishes == Finish.RUNNING), np.uint8(Finish.LENGTH), finishes)
