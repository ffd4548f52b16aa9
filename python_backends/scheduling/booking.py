"""Books the tokens of a step: appends them to the slot table and labels them with request id, request epoch
and index.

Owns what stays the same while the same rows get a token at every step: their requests, and after how many
steps one of them is full. Such a run costs a step no look at each row. Called by the slot scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Finish, Ids
from python_backends.nouns.step import HiddenStates, PromptLogProbs, StepOutput, StepPlan, Tokens
from python_backends.scheduling.state.slots import Rows, SlotTable, rows_of


@dataclass(slots=True)
class _Rows:
    """The rows [n] of one step, or of the steps of a run."""

    run: int  # -1: these rows are of one step only
    slots: Ids
    rows: Rows  # the same as an index
    request_ids: NDArray[np.int64]
    request_epochs: Ids
    indices: Ids  # position of each row's next token in its answer
    num_unfull: int  # coming steps after which no row is full


class Booking:
    def __init__(self, slots: SlotTable) -> None:
        self._table = slots
        self._last: _Rows | None = None  # of the run that is being booked

    def hidden_states(self, plan: StepPlan, output: StepOutput, layer: int) -> HiddenStates | None:
        """Those that were read in a step whose tokens are not booked yet, of rows that still have their
        slots; None: there are none.
        """
        if output.states is None:
            return None
        slots, generations = (part[plan.samples][plan.read] for part in (plan.slots, plan.slot_generations))
        table, current = self._table, self._are_current(slots, generations)
        slots = slots[current]
        if not len(slots):
            return None
        request_ids, request_epochs = table.request_ids[slots], table.request_epochs[slots]
        written = table.known[slots] - table.prompts[slots]
        return HiddenStates(request_ids, request_epochs, written, output.states[current].ravel(), layer)

    def prompt_log_probs(self, plan: StepPlan, output: StepOutput) -> PromptLogProbs | None:
        """Those of a step, of prompts that still have their slots; None: there are none."""
        if plan.scored is None or output.prompt_log_probs is None:
            return None
        ends, rows = np.cumsum(plan.lengths), plan.scored.rows
        spans = np.searchsorted(ends, rows, side="right")
        places = rows - (ends - plan.lengths)[spans] + plan.starts[spans]
        current = self._are_current(plan.slots[spans], plan.slot_generations[spans])
        slots, table = plan.slots[spans][current], self._table
        if not len(slots):
            return None
        indices = (places[current] + 1).astype(np.int32)
        values = output.prompt_log_probs.kept(current)
        return PromptLogProbs(table.request_ids[slots], table.request_epochs[slots], indices, values)

    def book_all(self, plan: StepPlan, output: StepOutput) -> tuple[Tokens, list[int]]:
        """Books a plan of decode rows that all still have their slots. Returns
        the tokens, and the slots that have ended.
        """
        if self._last is None or plan.run != self._last.run:
            self._last = self._begin(plan.slots, rows_of(plan.slots), plan.run)
        return self._book(self._last, output)

    def book_current(self, slots: Ids, generations: Ids, output: StepOutput) -> tuple[Tokens, list[int]]:
        """Books those of the rows [sampled] that still have their generation
        of the slot. Returns the same as `book_all`.
        """
        current = self._are_current(slots, generations)
        log_probs = None if output.log_probs is None else output.log_probs.kept(current)
        kept = replace(
            output, tokens=output.tokens[current], finishes=output.finishes[current], log_probs=log_probs
        )
        slots, self._last = slots[current], None
        return self._book(self._begin(slots, slots, -1), kept)

    def _are_current(self, slots: Ids, generations: Ids) -> NDArray[np.bool_]:
        """[n] which of `slots` [n] still have these `generations` [n]."""
        current: NDArray[np.bool_] = self._table.live[slots] & (self._table.generations[slots] == generations)
        return current

    def _begin(self, slots: Ids, rows: Rows, run: int) -> _Rows:
        table = self._table
        known = table.known[rows]
        num_unfull = int((table.limits[rows] - known).min()) - 1 if len(slots) else 0
        request_ids, request_epochs = table.request_ids[rows].copy(), table.request_epochs[rows].copy()
        return _Rows(run, slots, rows, request_ids, request_epochs, known - table.prompts[rows], num_unfull)

    def _book(self, rows: _Rows, output: StepOutput) -> tuple[Tokens, list[int]]:
        self._table.append(rows.rows, rows.slots, output.tokens)
        finishes = output.finishes if rows.num_unfull > 0 else self._with_full_ones(rows, output.finishes)
        tokens = Tokens(
            rows.request_ids, rows.request_epochs, rows.indices, output.tokens, finishes, output.log_probs
        )
        rows.indices, rows.num_unfull = rows.indices + np.int32(1), rows.num_unfull - 1
        return tokens, rows.slots[finishes != Finish.RUNNING].tolist() if finishes.any() else []

    def _with_full_ones(self, rows: _Rows, finishes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """`finishes`, with LENGTH for rows that have reached our limit: it may be lower than the engine's."""
        full = self._table.known[rows.rows] >= self._table.limits[rows.rows]
        return np.where(full & (finishes == Finish.RUNNING), np.uint8(Finish.LENGTH), finishes)
