"""The step plans of one static batch: all prompts at once, then every row at every step until the last one
has ended.

Owns the frame of the batch that runs: each row holds KV blocks for the longest prompt and as many output
tokens as the longest answer has by now, padding among them, and they grow together. A row that has ended
stays: the engine goes on computing it, and the result of it is not valid. Decides nothing but when memory is
used up. Called by `mode`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from python_backends.nouns.request import Ids, ModelLimits, Request
from python_backends.nouns.step import Admit, Grow, SlotOperation, StepPlan

NO_TOKENS = np.zeros(0, np.int32)


class OutOfMemoryError(Exception):
    """No KV blocks are left for the next token of the batch."""


class BatchPlans:
    """`plan` gives one step after the other; each yields one token of every row."""

    def __init__(self, requests: Sequence[Request], limits: ModelLimits) -> None:
        self._requests = requests
        self._limits = limits
        self._slots: Ids = np.arange(len(requests), dtype=np.int32)
        self._prompts: Ids = np.array([len(request.prompt) for request in requests], np.int32)
        self._frame = int(self._prompts.max())  # tokens that each row may hold
        self._blocks_a_row = 0
        self._steps = 0
        self._last: StepPlan | None = None  # of decode rows

    def plan(self) -> StepPlan:
        """The next step. Raises OutOfMemoryError."""
        operations = self._prefill_operations() if self._steps == 0 else self._growth()
        self._steps += 1
        if self._last is not None and self._last.starts.max() + 1 < self._limits.max_model_tokens:
            self._last = self._last.next_in_run(self._steps, tuple(operations))
            return self._last
        plan = self._write(operations)
        self._last = plan if self._steps > 1 else None
        return plan

    def _write(self, operations: list[SlotOperation]) -> StepPlan:
        count, is_prefill = len(self._requests), self._steps == 1
        return StepPlan(
            number=self._steps,
            operations=tuple(operations),
            slots=self._slots,
            slot_generations=np.ones(count, np.int32),
            first_starts=np.zeros_like(self._prompts) if is_prefill else self._positions(),
            lengths=self._prompts if is_prefill else np.ones(count, np.int32),
            num_decodes=0 if is_prefill else count,
            samples=np.ones(count, np.bool_),
            tokens=np.concatenate([request.prompt for request in self._requests])
            if is_prefill
            else NO_TOKENS,
        )

    def _positions(self) -> Ids:
        """The position of each row's last token; rows that have ended go
        on, up to the end of the model's context.
        """
        return np.minimum(self._prompts + self._steps - 2, self._limits.max_model_tokens - 1).astype(np.int32)

    def _prefill_operations(self) -> list[SlotOperation]:
        blocks = self._take(-(-self._frame // self._limits.block_tokens))
        rows = zip(self._slots.tolist(), self._requests, blocks, strict=True)
        return [
            Admit(slot, 1, request.sampling, len(request.prompt), 0, held, request.prompt)
            for slot, request, held in rows
        ]

    def _growth(self) -> list[SlotOperation]:
        """One more block for every row if the frame needs it."""
        size = self._limits.block_tokens
        self._frame = min(self._frame + 1, self._limits.max_model_tokens)
        first = self._blocks_a_row
        if self._frame <= first * size:
            return []
        rows = zip(self._slots.tolist(), self._take(1), strict=True)
        return [Grow(slot, 1, first, held) for slot, held in rows]

    def _take(self, count: int) -> Ids:
        """`count` more blocks for each row: [rows, count]."""
        rows, taken = len(self._requests), len(self._requests) * self._blocks_a_row
        if taken + rows * count > self._limits.num_blocks:
            raise OutOfMemoryError(
                f"{rows} rows of {self._frame} tokens need more than {self._limits.num_blocks} KV blocks"
            )
        self._blocks_a_row += count
        return np.arange(taken, taken + rows * count, dtype=np.int32).reshape(rows, count)
