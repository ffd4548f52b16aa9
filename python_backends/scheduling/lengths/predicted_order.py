"""Whose turn it is, by how long answers are predicted to take: computed again at most every 50 ms, by array
operations.

Owns a few numbers for each waiting sequence. A step reads the head of the order; a sequence that comes in
between is after it until the order is next made. If very many wait, a sort looks at the head and at one part
of the others, and the next sort at the next part, so that no step waits for a long sort. Called by the
waiting list and the slot scheduler; the ranks are policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from python_backends.scheduling.lengths.belief import Array
from python_backends.scheduling.state.sequence import Sequence
from python_backends.settings import SchedulingSettings

HEAD = 64  # sequences that a step may look at, in addition to one for each free slot
# of the longest present wait: so long a request may be passed over among equals where slots are scarce. With
# a larger share more requests are in time under overload, and the longest wait is longer
PATIENCE = 0.1
LOOKED_AT = 2048  # sequences in one sort, plus at most as many of the head
# Rows of `_known`. `REST`: predicted tokens still to come; `PASSED`: when it was first passed over.
PRIORITY, ARRIVED, FIRST_DUE, PROMPT, REST, MOST, PASSED, ARRIVAL = range(8)


@dataclass(frozen=True, slots=True)
class Waits:
    """What a policy's rank knows of n waiting sequences."""

    waited_s: Array  # [n]
    service_s: Array  # [n] what prefill and answer are predicted to take
    # [n] until it has to start for its first token to come in time; infinite for those that have theirs
    slack_s: Array
    # [n] since one that came later and has no larger priority went before it; negative if none has
    passed_s: Array
    patience_s: float  # how long it may be passed over like that


Rank = Callable[[Waits], Array]  # [n] the smallest value goes first


class PredictedOrder:
    """First tokens should come within `settings.ttft_s`; `rest_tokens` predicts
    the tokens that n sequences still make, [n].
    """

    def __init__(
        self,
        rank: Rank,
        settings: SchedulingSettings,
        rest_tokens: Callable[[list[Sequence]], Array],
        clock: Callable[[], float],
    ) -> None:
        self._rank = rank
        self._ttft_s = settings.ttft_s
        self._rest_tokens = rest_tokens
        self._clock = clock
        self._sequences: list[Sequence] = []
        self._places: dict[int, int] = {}  # of each request among them
        self._known = np.zeros((8, HEAD))  # a column for each of them
        self._next = 0  # the place at which the next sort begins
        # by priority: latest arrival of those seated since all places were sorted
        self._seated: dict[int, float] = {}
        self._head: dict[int, Sequence] = {}  # by request, in order

    def add(self, sequence: Sequence) -> None:
        place = len(self._sequences)
        if place == self._known.shape[1]:
            self._known = np.concatenate([self._known, np.zeros_like(self._known)], axis=1)
        self._places[sequence.request_id] = place
        self._sequences.append(sequence)
        most = sequence.request.sampling.max_tokens - sequence.num_output_tokens
        first_due_s = sequence.arrived_s + self._ttft_s if sequence.num_output_tokens == 0 else np.inf
        priority, prompt, rest = sequence.request.priority, len(sequence.tokens), self._expected(sequence)
        self._known[:, place] = (
            priority,
            sequence.arrived_s,
            first_due_s,
            prompt,
            rest,
            most,
            np.inf,
            sequence.arrival,
        )
        self._head[sequence.request_id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Removes `sequence`; the last one moves to its place."""
        place, last = self._places.pop(sequence.request_id), self._sequences.pop()
        if last is not sequence:
            self._sequences[place] = last
            self._places[last.request_id] = place
            self._known[:, place] = self._known[:, len(self._sequences)]
        self._head.pop(sequence.request_id, None)

    def seated(self, sequence: Sequence) -> None:
        """`sequence` has got a slot before all that still wait."""
        if not self._sequences:
            self._seated.clear()
            return
        priority = sequence.request.priority
        self._seated[priority] = max(sequence.arrived_s, self._seated.get(priority, -math.inf))

    def expect(self, sequence: Sequence) -> None:
        """Uses the prediction of `sequence` from now on, if it waits."""
        place = self._places.get(sequence.request_id)
        if place is not None:
            self._known[REST, place] = self._expected(sequence)

    def __iter__(self) -> Iterator[Sequence]:
        """The head; the sequences after it are not ordered."""
        yield from self._head.values()

    @property
    def is_used_up(self) -> bool:
        return not self._head and bool(self._sequences)

    def forget(self) -> None:
        """Puts all that wait into the head, in any order. Called while all of them get slots at once."""
        self._head = {sequence.request_id: sequence for sequence in self._sequences}

    def sort(
        self,
        count: int,
        usual_tokens: float,
        seconds: Callable[[Array, Array], tuple[Array, Array]],
        slots_are_scarce: bool = True,
        can_go: Callable[[Sequence], bool] = lambda sequence: True,
    ) -> None:
        """Computes the order again, the first `count` of it. `usual_tokens`: of answers for which nothing is
        predicted; `seconds`: what the prefill of [n] prompt tokens and [n] answer tokens take. Where some of
        these first ones can't go, more follow.

        When slots are scarce, overtaking makes others wait, and `patience_s` limits it. When memory is
        scarce, admission by predicted length raises the throughput for all requests, so there is no such
        limit.
        """
        places, now_s = self._look_on(), self._clock()
        self._note_passed(places, now_s)
        if self._next == 0:  # all places have been covered
            self._seated.clear()
        priority, arrived_s, first_due_s, prompts, rests, most, passed_s, arrival = self._known[:, places]
        tokens = np.minimum(np.where(np.isnan(rests), usual_tokens, rests), most)
        prefill_s, decode_s = seconds(prompts, tokens)
        waited_s = now_s - arrived_s
        longest_s = now_s - float(self._known[ARRIVED, : len(self._sequences)].min(initial=now_s))
        patience_s = max(self._ttft_s, PATIENCE * longest_s) if slots_are_scarce else math.inf
        slack_s = first_due_s - prefill_s - now_s
        rank = self._rank(Waits(waited_s, prefill_s + decode_s, slack_s, now_s - passed_s, patience_s))
        first = [self._sequences[place] for place in places[least(rank, priority, arrival, count)]]
        if not all(map(can_go, first)):
            in_order = (self._sequences[place] for place in places[least(rank, priority, arrival, len(rank))])
            first = _with_more(in_order, count, can_go)
        self._head = {sequence.request_id: sequence for sequence in first}

    def _look_on(self) -> NDArray[np.int64]:
        """The places to sort now: all, or, if more than LOOKED_AT wait, the head and the next LOOKED_AT."""
        count, begin = len(self._sequences), self._next
        self._next = begin + LOOKED_AT if begin + LOOKED_AT < count else 0
        if count <= LOOKED_AT:
            return np.arange(count)
        part = (begin + np.arange(LOOKED_AT)) % count
        head = [self._places[request] for request in islice(self._head, LOOKED_AT)]
        return np.union1d(part, np.array(head, np.int64))

    def _note_passed(self, places: NDArray[np.int64], now_s: float) -> None:
        """A sequence that came before one that got a slot, and has no
        smaller priority, has been passed over.
        """
        for seated, latest_s in self._seated.items():
            passed = (self._known[ARRIVED, places] < latest_s) & (self._known[PRIORITY, places] >= seated)
            passed &= np.isinf(self._known[PASSED, places])
            self._known[PASSED, places[passed]] = now_s

    def check_integrity(self) -> None:
        """Raises AssertionError."""
        assert self._places.keys() >= self._head.keys(), "somebody who doesn't wait stands in the order"
        here = {sequence.request_id: place for place, sequence in enumerate(self._sequences)}
        assert here == self._places, "places of the predicted order are off"

    def _expected(self, sequence: Sequence) -> float:
        """Tokens that it is predicted to make; NaN: there is no prediction."""
        if sequence.prediction is None:
            return math.nan
        return (
            float(self._rest_tokens([sequence])[0])
            if sequence.num_output_tokens
            else sequence.prediction.mean
        )


def _with_more(
    in_order: Iterable[Sequence], count: int, can_go: Callable[[Sequence], bool]
) -> list[Sequence]:
    """The first `count` of these that can go, and of the others before them the first HEAD."""
    first: list[Sequence] = []
    num_going = 0
    for sequence in in_order:
        goes = can_go(sequence)
        num_going += goes
        if goes or len(first) - num_going < HEAD:
            first.append(sequence)
        if num_going == count:
            break
    return first


def least(rank: Array, priority: Array, arrival: Array, count: int) -> NDArray[np.intp]:
    """Places of the first `count`: larger priority first, then smaller rank, then
    the earlier arrival (of equals at the edge, any).
    """
    places = np.arange(len(rank))
    if count < len(rank):
        edge = -np.partition(-priority, count - 1)[count - 1]
        places = np.flatnonzero(priority >= edge)
        above = priority[places] > edge
        need = count - int(above.sum())
        level = places[~above]
        level = level[np.argpartition(rank[level], need - 1)[:need]] if need < len(level) else level
        places = np.concatenate([places[above], level])
    order: NDArray[np.intp] = np.lexsort((arrival[places], rank[places], -priority[places]))
    return places[order]
