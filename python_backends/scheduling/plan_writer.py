"""Writes the plan of each step: the decode rows, then chunks of prompts, within the token budget and the time
a step may take.

Owns the numbers of the steps, and the run: as long as the same rows decode and nothing else happens, the next
plan is the last one, one token further, whatever the number of rows. Decides neither which request has a slot
nor which is evicted. Called by the slot scheduler.
"""

from __future__ import annotations

import numpy as np

from python_backends.nouns.request import Ids
from python_backends.nouns.step import MOST_SCORED, StepPlan
from python_backends.scheduling.outlook import Outlook
from python_backends.scheduling.policies.policy import Policy
from python_backends.scheduling.reading import Reading
from python_backends.scheduling.scoring import Chunk, scored_rows
from python_backends.scheduling.state.allocator import Allocator
from python_backends.scheduling.state.slots import Rows, rows_of

LEAST_TOKENS = 16  # of the first chunk of a step, whatever the time it may take


class PlanWriter:
    """The policy says whether prompts are cut to fit, and whether those of higher priority are computed
    first.
    """

    def __init__(
        self,
        allocator: Allocator,
        outlook: Outlook,
        policy: Policy,
        token_budget: int,
        row_multiple: int,
        reading: Reading,
    ) -> None:
        self._allocator = allocator
        self._slots = allocator.slots
        self._outlook = outlook
        self._policy = policy
        self._token_budget, self._row_multiple, self._reading = token_budget, row_multiple, reading
        self.num_steps = 0  # planned so far
        self._last: StepPlan  # the plan written last
        self._rows: Rows  # of the last plan, if it has decode rows only
        self._num_more_steps = 0  # that its run may still have if nothing changes

    @property
    def is_in_run(self) -> bool:
        """Whether the next step has the same rows as the last one, each one token
        further, unless a sequence gets or leaves a slot.
        """
        return self._num_more_steps > 0 and not self._allocator.has_operations

    def end_run(self) -> None:
        """Other rows may decode in the next step: its plan is written again."""
        self._num_more_steps = 0

    def go_on(self) -> StepPlan:
        """The next plan of the run."""
        self._num_more_steps -= 1
        read = self._reading.of_run(self._rows)
        self._slots.plan_decodes(self._rows)
        self._last = self._last.next_in_run(self.next_number(), read=read)
        return self._last

    def write(self) -> StepPlan | None:
        """The plan of all rows and chunks that are due; None if there are
        none: operations then wait for the next plan.
        """
        self._num_more_steps = 0
        decodes = self._slots.decoding()
        chunks = self._chunks(decodes)
        if not len(decodes) and not chunks:
            return None
        self._last = self._plan(decodes, chunks)
        if not chunks:
            self._rows = rows_of(decodes)
            self._num_more_steps = self._slots.num_more_steps(self._rows)
            self._reading.begin_run(self._rows)
        return self._last

    def next_number(self) -> int:
        self.num_steps += 1
        return self.num_steps - 1

    def _chunks(self, decodes: Ids) -> list[Chunk]:
        """This step's prefill chunks, in the order of their turns."""
        chunks: list[Chunk] = []
        slots = self._in_turn(self._slots.prefilling())
        if not slots:
            return chunks
        budget = self._token_budget - len(decodes)
        num_scored = 0
        left_s, times = self._outlook.prefill_s(decodes), self._outlook.step_time
        coming: set[bytes] = set()  # keys of the blocks that chunks of this step fill
        for slot in slots:
            self._allocator.catch_up(slot)
            if coming and self._allocator.next_key(slot) in coming:
                continue  # the next step shares that block
            start = int(self._slots.computed[slot])
            length = int(self._slots.targets[slot]) - start
            scores = self._slots.sequence(slot).scores_prompt
            if scores and num_scored == MOST_SCORED:
                continue  # it goes on in the next step; others don't wait for it
            if scores:
                length = min(length, MOST_SCORED - num_scored)
            if self._policy.chunked_prefill:
                length = self._cut(
                    min(length, budget),
                    self._token_budget - budget,
                    times.chunk_tokens(left_s, start),
                    bool(chunks),
                )
            if length <= 0:
                break
            budget -= length
            num_scored += length if scores else 0
            left_s = max(0.0, left_s - times.chunk_s(start, length))
            chunks.append((slot, start, length))
            coming.update(self._allocator.filled_keys(slot, start + length))
        return chunks

    def _in_turn(self, slots: list[int]) -> list[int]:
        """`slots` in the order in which they are computed: larger priority first, if that counts; then, if
        the policy goes by predicted time, the most of (time waited)² / tokens left; then by arrival. So a
        short prompt does not wait for long ones, and one with a hundred times as many tokens left goes before
        it once it has waited ten times as long. One that has had its slot for longer than `max_passed_over_s`
        counts as of the highest priority of them.
        """
        highest = max(map(self._priority, slots), default=0)
        return sorted(slots, key=lambda slot: self._turn(slot, highest))

    def _turn(self, slot: int, highest: int) -> tuple[int, float, float]:
        """The slot with the smallest is computed first. `highest`: priority of one that was passed over."""
        sequence = self._slots.sequence(slot)
        is_overdue = self._outlook.seated_s(sequence) > self._policy.max_passed_over_s
        priority = highest if is_overdue else self._priority(slot)
        if self._policy.rank is None:
            return -priority, 0.0, sequence.arrival
        left = int(self._slots.targets[slot] - self._slots.computed[slot])
        return -priority, -(self._outlook.waited_s(sequence) ** 2) / left, sequence.arrival

    def _priority(self, slot: int) -> int:
        return self._slots.sequence(slot).request.priority if self._policy.by_priority else 0

    def _cut(self, wanted: int, num_rows: int, in_time: float, has_chunks: bool) -> int:
        """Tokens of a chunk that may have `wanted`, of which `in_time` fit the time, in a step of `num_rows`
        tokens so far. If it is cut, the step has a multiple of `row_multiple` rows. The first chunk of a step
        has at least LEAST_TOKENS.
        """
        if in_time >= wanted:
            return wanted
        size = self._row_multiple
        cut = int(num_rows + in_time) // size * size - num_rows
        return max(cut, 0 if has_chunks else min(LEAST_TOKENS, wanted))

    def _plan(self, decodes: Ids, chunks: list[Chunk]) -> StepPlan:
        table, count = self._slots, len(decodes)
        columns = np.array(chunks, np.int32).reshape(-1, 3)
        slots = np.concatenate([decodes, columns[:, 0]])
        starts = np.concatenate([table.planned[decodes] - 1, columns[:, 1]])
        lengths = np.concatenate([np.ones(count, np.int32), columns[:, 2]])
        ends = starts + lengths
        samples = table.will_yield(slots, ends)
        read = self._reading.of_step(slots[samples])
        table.plan_spans(slots, ends)
        return StepPlan(
            number=self.next_number(),
            operations=self._allocator.take_operations(),
            slots=slots,
            slot_generations=table.generations[slots],
            first_starts=starts,
            lengths=lengths,
            num_decodes=count,
            samples=samples,
            tokens=self._prefill_tokens(chunks),
            read=read,
            scored=scored_rows(table, count, chunks),
        )

    def _prefill_tokens(self, chunks: list[Chunk]) -> Ids:
        for slot, start, length in chunks:
            self._allocator.publish_prefill(slot, start + length)
        rows = [self._slots.tokens[slot, start : start + length] for slot, start, length in chunks]
        return np.concatenate(rows) if rows else np.zeros(0, np.int32)
