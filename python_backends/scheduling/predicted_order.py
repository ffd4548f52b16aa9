"""Whose turn it is, by how long answers are predicted to take: made anew for all that wait, at once, at most every 50 ms.

Owns one row of a few arrays for each waiting sequence. A step reads the head of the order; who comes in between stands behind it
until the order is next made. Called by the waiting list and the slot scheduler; the ranks are policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from python_backends.config import SchedulingSettings
from python_backends.scheduling.lengths import Array
from python_backends.scheduling.sequence import Sequence

HEAD = 64  # sequences beyond the free slots that a step may look at
REST, PASSED = 4, 6  # the columns of the predicted tokens, and of when it was first passed over


@dataclass(frozen=True, slots=True)
class Waits:
    """n waiting sequences, as a policy ranks them."""

    waited_s: Array  # [n]
    service_s: Array  # [n] what prefill and answer are predicted to take
    slack_s: Array  # [n] until it has to start for its first token to come in time; infinite for those that have theirs
    passed_s: Array  # [n] since one that came later and has no larger priority went before it; negative if none has
    patience_s: float  # so long it may be passed over like that


Rank = Callable[[Waits], Array]  # [n] the least goes first


class PredictedOrder:
    """First tokens are to come within `settings.ttft_s`; `rest_tokens` [n] is what sequences are predicted to make still."""

    def __init__(
        self, rank: Rank, settings: SchedulingSettings, rest_tokens: Callable[[list[Sequence]], Array], clock: Callable[[], float]
    ) -> None:
        self._rank = rank
        self._ttft_s = settings.ttft_s
        self._patience = settings.patience
        self._rest_tokens = rest_tokens
        self._clock = clock
        self._rows: dict[int, int] = {}  # by request
        self._sequences: list[Sequence | None] = []
        self._free: list[int] = []
        self._columns = np.zeros((0, 7))
        self._seated: dict[int, float] = {}  # by priority, since the order was last made: when the latest of them had arrived
        self._head: dict[int, Sequence] = {}  # by request, in order

    def add(self, sequence: Sequence) -> None:
        row = self._free.pop() if self._free else self._new_row()
        self._rows[sequence.request_id] = row
        self._sequences[row] = sequence
        most = sequence.request.sampling.max_tokens - sequence.num_output_tokens
        first_due_s = sequence.arrived_s + self._ttft_s if sequence.num_output_tokens == 0 else np.inf
        priority, prompt = sequence.request.priority, len(sequence.tokens)
        self._columns[row] = priority, sequence.arrived_s, first_due_s, prompt, self._expected(sequence), most, np.inf
        self._head[sequence.request_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        row = self._rows.pop(sequence.request_id)
        self._sequences[row] = None
        self._free.append(row)
        self._head.pop(sequence.request_id, None)

    def seated(self, sequence: Sequence) -> None:
        """It has got a slot, before all that wait."""
        if not self._rows:
            self._seated.clear()
            return
        priority = sequence.request.priority
        self._seated[priority] = max(sequence.arrived_s, self._seated.get(priority, -math.inf))

    def expect(self, sequence: Sequence) -> None:
        """Takes up what was predicted for it, if it waits."""
        row = self._rows.get(sequence.request_id)
        if row is not None:
            self._columns[row, REST] = self._expected(sequence)

    def in_order(self) -> Iterator[Sequence]:
        """The head; beyond it nobody has been put into order."""
        yield from self._head.values()

    @property
    def is_used_up(self) -> bool:
        return not self._head and bool(self._rows)

    def sort(
        self, count: int, usual_tokens: float, seconds: Callable[[Array, Array], tuple[Array, Array]], slots_are_scarce: bool = True
    ) -> None:
        """Makes the order anew, the first `count` of it. `usual_tokens`: of answers for which nothing is predicted; `seconds`: what
        the prefill of [n] prompt tokens and [n] answer tokens take.

        Where slots are scarce somebody's gain is another one's wait, and `patience` bounds it. Where memory is, foreseeing it gives
        everybody more than passing over takes.
        """
        rows = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        now_s = self._clock()
        self._note_passed(rows, now_s)
        priority, arrived_s, first_due_s, prompts, rests, most, passed_s = self._columns[rows].T
        tokens = np.minimum(np.where(np.isnan(rests), usual_tokens, rests), most)
        prefill_s, decode_s = seconds(prompts, tokens)
        waited_s = now_s - arrived_s
        patience_s = max(self._ttft_s, self._patience * float(waited_s.max(initial=0.0))) if slots_are_scarce else math.inf
        slack_s = first_due_s - prefill_s - now_s
        rank = self._rank(Waits(waited_s, prefill_s + decode_s, slack_s, now_s - passed_s, patience_s))
        first = least(rank, priority, count)
        sequences = (self._sequences[row] for row in rows[first])
        self._head = {sequence.request_id: sequence for sequence in sequences if sequence is not None}

    def _note_passed(self, rows: NDArray[np.int64], now_s: float) -> None:
        """Whoever of `rows` came before one that has got a slot, and has no less priority, has been passed over."""
        for seated, latest_s in self._seated.items():
            passed = (self._columns[rows, 1] < latest_s) & (self._columns[rows, 0] >= seated) & np.isinf(self._columns[rows, PASSED])
            self._columns[rows[passed], PASSED] = now_s
        self._seated.clear()

    def check_integrity(self) -> None:
        """Raises AssertionError."""
        assert self._rows.keys() >= self._head.keys(), "somebody who doesn't wait stands in the order"
        here = [sequence is not None for sequence in self._sequences]
        assert sum(here) == len(self._rows) == len(here) - len(self._free), "rows of the predicted order are off"

    def _expected(self, sequence: Sequence) -> float:
        """Tokens that it is predicted to make; NaN: nobody has predicted anything."""
        if sequence.prediction is None:
            return math.nan
        return float(self._rest_tokens([sequence])[0]) if sequence.num_output_tokens else sequence.prediction.mean

    def _new_row(self) -> int:
        row = len(self._sequences)
        self._sequences.append(None)
        if row == len(self._columns):
            self._columns = np.concatenate([self._columns, np.zeros((max(HEAD, row), 7))])
        return row


def least(rank: Array, priority: Array, count: int) -> NDArray[np.intp]:
    """Places of the first `count`: larger priority first, then lesser rank."""
    places = np.arange(len(rank))
    if count < len(rank):
        edge = -np.partition(-priority, count - 1)[count - 1]
        places = np.flatnonzero(priority >= edge)
        above = priority[places] > edge
        need = count - int(above.sum())
        level = places[~above]
        level = level[np.argpartition(rank[level], need - 1)[:need]] if need < len(level) else level
        places = np.concatenate([places[above], level])
    order: NDArray[np.intp] = np.lexsort((places, rank[places], -priority[places]))
    return places[order]
