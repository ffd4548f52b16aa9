"""What the layers read of a step, and where they write logits and hidden states.

Owns the arrays, which the library reads where they lie: in steps of the same decode rows they are changed in
place. Called by `steps`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from python_backends.engine.cpu.adapters import AdapterRows, PackedAdapter
from python_backends.engine.cpu.model import StepTable
from python_backends.engine.cpu.served import BLOCK_TOKENS
from python_backends.engine.slots.adapter_slots import AdapterSlots
from python_backends.nouns.request import Floats, Ids
from python_backends.nouns.step import StepPlan

# listed beyond those that a span needs, so that the list is not made again at every block; they are not read
BLOCKS_AHEAD = 4

Table = NDArray[np.int64]  # [slots, blocks]


class StepInputs:
    def __init__(self, vocab_size: int, hidden: int, adapters: AdapterSlots[PackedAdapter]) -> None:
        """`hidden`: width of the hidden states that are given; 0: none are."""
        self.table = StepTable()
        self._adapter_rows = AdapterRows(adapters)
        self._vocab_size, self._hidden = vocab_size, hidden
        self._arrays: dict[str, NDArray[np.int32]] = {}
        # the run for whose decode rows the arrays are made; -1: there are prompts among them, or other blocks
        self._run = -1
        # of that run: the last one, and the one for which the arrays were made
        self._step_in_run = self._first_step = 0
        self.logits: Floats = np.zeros((0, vocab_size), np.float32)  # [sampled, vocabulary] of the last step
        self.scored: Floats = self.logits  # [scored, vocabulary]
        self.states: Floats = np.zeros((0, hidden), np.float32)  # [sampled, hidden]
        self._logits, self._states = self.logits, self.states  # as many rows as ever were wanted

    def fill(self, plan: StepPlan, table: Table) -> None:
        """All but the tokens of the decode rows. In a run, arrays are made again when the listed blocks end,
        and after `forget_blocks`.

        Spans have the order of the plan: decode rows, then chunks of prompts. Positions are the plan's. A row
        that has ended meanwhile computes a token more, after its last one, in a block of its own.
        """
        steps = plan.step_in_run - self._first_step
        if plan.run == self._run and steps < BLOCKS_AHEAD * BLOCK_TOKENS:
            self._arrays["past"] += plan.step_in_run - self._step_in_run
            self._step_in_run = plan.step_in_run
        else:
            self._make(plan, table)

    def forget_blocks(self) -> None:
        """The block table has changed."""
        self._run = -1

    def put_tokens(self, tokens: NDArray[np.int64]) -> None:
        """Of the decode rows [decodes]."""
        self._arrays["tokens"][: len(tokens)] = tokens

    def _make(self, plan: StepPlan, table: Table) -> None:
        ends = np.cumsum(plan.lengths)
        blocks, block_begins = _blocks(table[plan.slots], plan.starts + plan.lengths)
        sampled = ends[plan.samples] - 1
        scored = [] if plan.scored is None else [plan.scored.rows]
        arrays = {
            "tokens": np.concatenate([np.zeros(plan.num_decodes, np.int32), plan.tokens]),
            "past": plan.starts,
            "begins": np.concatenate([[0], ends]),
            "blocks": blocks,
            "block_begins": block_begins,
            "sampled": np.concatenate([sampled, *scored]),
        }
        self._arrays = {name: np.array(values, np.int32) for name, values in arrays.items()}
        for name, values in self._arrays.items():
            setattr(self.table, name, values.ctypes.data)
        self.table.num_spans, self.table.num_sampled = len(plan.slots), len(self._arrays["sampled"])
        self._adapter_rows.put(self.table, plan.slots, plan.lengths)
        self._divide(len(sampled), len(self._arrays["sampled"]))
        self._run = -1 if len(plan.tokens) else plan.run
        self._first_step = self._step_in_run = plan.step_in_run

    def _divide(self, num_sampled: int, num_rows: int) -> None:
        """The first `num_sampled` rows sample, the others are scored."""
        if num_rows > len(self._logits):
            self._logits = np.empty((num_rows, self._vocab_size), np.float32)
            self._states = np.empty((num_rows, self._hidden), np.float32)
            self.table.logits, self.table.states = self._logits.ctypes.data, self._states.ctypes.data
        self.logits, self.scored = self._logits[:num_sampled], self._logits[num_sampled:num_rows]
        self.states = self._states[:num_sampled]


def _blocks(rows: Table, num_tokens: Ids) -> tuple[Table, NDArray[np.int64]]:
    """Of `rows` [spans, blocks] those that hold the first `num_tokens`
    [spans] and some more, and where each span's begin.
    """
    counts = np.minimum(-(-num_tokens // BLOCK_TOKENS) + BLOCKS_AHEAD, rows.shape[1])
    return rows[np.arange(rows.shape[1]) < counts[:, None]], np.concatenate([[0], np.cumsum(counts)])
