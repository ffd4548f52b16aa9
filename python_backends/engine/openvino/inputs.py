"""What the OpenVINO graph reads of a step, for one of its infer requests.

Owns the arrays, which the request reads where they lie: in steps of the same decode rows they are changed in
place. Called by `stages.py`.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from python_backends.engine.kv.padding import padded
from python_backends.engine.openvino import BLOCK_TOKENS
from python_backends.engine.openvino.graph import STEP_INPUTS
from python_backends.nouns.request import Ids
from python_backends.nouns.step import StepPlan

# listed beyond those that a span needs, so that the list is not made again at every block; they are not read
BLOCKS_AHEAD = 4

Table = NDArray[np.int64]  # [slots, blocks]


class StepInputs:
    """Steps are padded to few sizes."""

    def __init__(self, request: ov.InferRequest, dead_slot: int) -> None:
        self.request = request
        self._dead_slot = dead_slot
        self._arrays: dict[str, NDArray[np.int32]] = {}
        self._decodes = np.zeros(0, np.int32)  # positions of the decode rows
        # the run for whose decode rows the arrays are made; -1: there are prompts among them, or other blocks
        self._run = -1
        # of that run: the last one, and the one for which the arrays were made
        self._step_in_run = self._first_step = 0

    def fill(self, plan: StepPlan, table: Table) -> None:
        """All but the tokens of the decode rows. In a run, arrays are made again when the listed blocks end,
        and after `forget_blocks`.

        Spans have the order of the plan: decode rows, then chunks of prompts. Positions are the plan's. A row
        that has ended meanwhile computes a token more, after its last one, in a block of its own.
        """
        steps = plan.step_in_run - self._first_step
        if plan.run == self._run and steps < BLOCKS_AHEAD * BLOCK_TOKENS:
            self._go_on(plan.step_in_run)
        else:
            self._make(plan, table)

    def forget_blocks(self) -> None:
        """The block table has changed."""
        self._run = -1

    def put_tokens(self, tokens: NDArray[np.int64]) -> None:
        """Of the decode rows [decodes]."""
        self._arrays["tokens"][: len(tokens)] = tokens

    def _go_on(self, step_in_run: int) -> None:
        steps = step_in_run - self._step_in_run
        self._decodes += steps
        self._arrays["max_context_len"] += steps
        self._step_in_run = step_in_run

    def _make(self, plan: StepPlan, table: Table) -> None:
        num_rows = plan.num_decodes + len(plan.tokens)
        # one span each: the first token of the dead slot
        padding = np.zeros(padded(num_rows) - num_rows, np.int32)
        slots = np.concatenate([plan.slots, padding + self._dead_slot])
        starts = np.concatenate([plan.starts, padding])
        lengths = np.concatenate([plan.lengths, padding + 1])
        ends, num_tokens = np.cumsum(lengths), starts + lengths
        blocks, begins = _blocks(table[slots], num_tokens)
        sampled = ends[: len(plan.samples)][plan.samples] - 1
        num_sampled = padded(max(len(sampled), 1))
        arrays = {
            "tokens": np.concatenate([np.zeros(plan.num_decodes, np.int32), plan.tokens, padding]),
            "positions": np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1]),
            "past_lens": starts,
            "subsequence_begins": np.concatenate([[0], ends]),
            "block_indices": blocks,
            "block_indices_begins": begins,
            "max_context_len": num_tokens.max(),
            "sampling_rows": np.append(sampled, np.zeros(num_sampled - len(sampled))),
        }
        self._arrays = {name: np.array(values, np.int32) for name, values in arrays.items()}
        self._run = -1 if len(plan.tokens) else plan.run
        if self._run >= 0:
            self._arrays["past_lens"] = self._arrays["positions"]
            self._decodes = self._arrays["positions"][: plan.num_decodes]
        self._first_step = self._step_in_run = plan.step_in_run
        for name in STEP_INPUTS:
            self.request.set_tensor(name, ov.Tensor(self._arrays[name], shared_memory=True))


def _blocks(rows: Table, num_tokens: Ids) -> tuple[Table, NDArray[np.int64]]:
    """Of `rows` [spans, blocks] those that hold the first `num_tokens`
    [spans] and some more, and where each span's begin.
    """
    counts = np.minimum(-(-num_tokens // BLOCK_TOKENS) + BLOCKS_AHEAD, rows.shape[1])
    return rows[np.arange(rows.shape[1]) < counts[:, None]], np.concatenate([[0], np.cumsum(counts)])
