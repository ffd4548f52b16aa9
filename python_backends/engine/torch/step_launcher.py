"""Puts all work of a step on the device: slot operations, batch, forward pass, choice of tokens, append.

Nothing of it needs the tokens of the step before on the host. A step in which all rows decode may have a
fixed shape (`decode_step`), and so may one with prompts (`mixed_step`). Owns the timer. Called by the torch
engine, which reads the results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.device import to_device
from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.slots.log_probs import log_probs, scored
from python_backends.engine.slots.numbers import fail_others
from python_backends.engine.slots.sampler import sample
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.step_timer import Seconds, StepTimer
from python_backends.engine.torch.adapters.slot_adapters import SlotAdapters
from python_backends.engine.torch.decode_step import Bucket, DecodeSteps, Step
from python_backends.engine.torch.decoder import Decoder
from python_backends.engine.torch.step_batch import Batcher, StepBatch, StepBatcher
from python_backends.nouns.request import Ids
from python_backends.nouns.step import Admit, ScoredRows, StepPlan

if TYPE_CHECKING:
    from python_backends.engine.torch.mixed_step import MixedSteps  # brings Triton's language


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    number: int
    order: NDArray[np.intp]  # [sampled] of the plan's spans that sample
    result: Tensor  # [2, sampled] tokens and finishes
    log_probs: Tensor | None  # [asking, …] as the device packed them
    asking: NDArray[np.intp]  # [asking] of the plan's spans that sample
    times: Callable[[], Seconds]
    states: Tensor | None = None  # [read, hidden]; None: there are none
    prompt_log_probs: Tensor | None = None  # [scored, …] as the device packed them; None: there are none
    done: Any = None  # a CUDA event: all of it is on the host then; None: it is


class StepLauncher:
    def __init__(
        self,
        decoder: Decoder,
        state: SlotState,
        cache: KVCache,
        adapters: SlotAdapters,
        kernels: bool,
    ) -> None:
        """`kernels`: ours run there."""
        self._decoder, self._state, self._cache, self._adapters = decoder, state, cache, adapters
        self._kernels = kernels
        if kernels:
            from python_backends.engine.torch.paged_batch import PagedBatcher  # brings Triton's language

            self.batcher: Batcher = PagedBatcher(state, cache, decoder.heads, decoder.windows, adapters)
        else:
            self.batcher = StepBatcher(state, cache, decoder.windows, adapters)
        self.decode_steps: DecodeSteps | None = None
        self.mixed_steps: MixedSteps | None = None
        self.timer = StepTimer()

    def fix_shapes(self, capture: Callable[[Step], Step] | None, token_budget: int) -> None:
        """From now on, steps in which all rows decode have a fixed shape; where kernels of ours run, steps
        with prompts, too. `capture`: see `DecodeSteps`.
        """
        parts = self._decoder, self._state, self._cache
        self.decode_steps = DecodeSteps(*parts, self.batcher, capture)
        if self._kernels:
            from python_backends.engine.torch.mixed_step import MixedSteps
            from python_backends.engine.torch.paged_batch import PagedBatcher

            assert isinstance(self.batcher, PagedBatcher)
            self.mixed_steps = MixedSteps(*parts, self.batcher, capture, token_budget)

    def launch(self, plan: StepPlan) -> LaunchedStep:
        self._state.apply(plan.operations)
        self._adapters.apply(plan.operations)
        if not self._kernels:  # which read no further than a sequence goes
            self._clear_after_last(plan)
        if not len(plan.slots):
            nothing = np.zeros(0, np.intp)
            tokens = torch.zeros((2, 0), dtype=torch.int64)
            return LaunchedStep(plan.number, nothing, tokens, None, nothing, lambda: (0.0, 0.0))
        if not self._kernels:
            self._clear_begun(plan)
        if self.decode_steps is None or self._adapters.is_used(plan.slots) or plan.scored is not None:
            return self._flat(plan)
        return self._mixed(plan) if len(plan.tokens) else self._decode(plan, self.decode_steps)

    def _clear_begun(self, plan: StepPlan) -> None:
        """Of blocks that `plan` begins and does not fill: their rest is read and hidden, and what others left
        there may be no number.
        """
        size = self._cache.shape.block_tokens
        ends = plan.starts + plan.lengths
        lasts = (ends - 1) // size
        is_begun = (plan.starts <= lasts * size) & (ends % size != 0)
        if is_begun.any():
            slots, columns = self._to_device(plan.slots[is_begun]), self._to_device(lasts[is_begun])
            self._cache.clear(self._state.table[slots, columns])

    def _clear_after_last(self, plan: StepPlan) -> None:
        """Of the block that the last token of an admitted request falls into: that of a moved one was written
        elsewhere, perhaps by layers in C++, which clear none.
        """
        for admit in plan.operations:
            if isinstance(admit, Admit):
                column, first = divmod(len(admit.tokens) - 1, self._cache.shape.block_tokens)
                for block in admit.blocks[column : column + 1].tolist():  # else it is a new one
                    self._cache.blocks[block, ..., first:, :] = 0

    def _to_device(self, values: Ids) -> Tensor:
        return to_device(values.astype(np.int64), self._state.device)

    def _flat(self, plan: StepPlan) -> LaunchedStep:
        batch = self.batcher.batch(plan)
        if plan.scored is not None:
            batch = self._with_scored(batch, plan.scored)
        self.timer.begin()
        logits, states = self._decoder.forward_with_states(  # [sampled and scored, vocabulary]
            batch, self._cache, self._read_rows(plan, batch)
        )
        count = len(batch.sampling_slots)
        scores = None if plan.scored is None else self._scores(logits[count:], plan.scored)
        step = self._choose(plan, logits[:count], batch.sampling_slots, batch.order)
        return replace(step, states=states, prompt_log_probs=scores)

    def _with_scored(self, batch: StepBatch, rows: ScoredRows) -> StepBatch:
        """Chunks have the same places in `batch` as in the plan. Their rows follow those that sample."""
        assert batch.sampling_rows is not None, "a step without chunks"
        return replace(batch, sampling_rows=torch.cat((batch.sampling_rows, self._to_device(rows.rows))))

    def _scores(self, logits: Tensor, rows: ScoredRows) -> Tensor:
        return scored(logits, self._to_device(rows.next_tokens), min(rows.num_top, logits.shape[1]))

    def _read_rows(self, plan: StepPlan, batch: StepBatch) -> Tensor | None:
        """[read] of the batch: the last tokens of the spans whose hidden states are read."""
        if not len(plan.read):
            return None
        places = np.argsort(batch.order)[plan.read]
        rows = to_device(places.astype(np.int64), self._state.device)
        return rows if batch.sampling_rows is None else batch.sampling_rows[rows]

    def _decode(self, plan: StepPlan, steps: DecodeSteps) -> LaunchedStep:
        bucket = steps.bucket(plan.slots)
        self.timer.begin()
        logits = steps.forward(bucket, int(plan.starts.max()) + 1)
        return self._chosen(plan, logits, bucket)

    def _mixed(self, plan: StepPlan) -> LaunchedStep:
        steps = self.mixed_steps
        filled = steps.bucket(plan) if steps is not None else None
        if steps is None or filled is None:
            return self._flat(plan)
        self.timer.begin()
        return self._chosen(plan, steps.forward(filled), filled.bucket)

    def _chosen(self, plan: StepPlan, logits: Tensor, bucket: Bucket) -> LaunchedStep:
        """The step of fixed shape whose `logits` [rows, vocabulary] begin with those of the plan."""
        slots = plan.slots[plan.samples]
        count, order = len(slots), np.arange(len(slots))
        choice = self._state.choice(slots)
        if choice is None:
            step = self._choose(plan, logits[:count], bucket.slots[:count], order)
        else:
            result = bucket.choose(self._state, choice)[:, :count]
            step = LaunchedStep(plan.number, order, result, None, order[:0], self.timer.end())
        if bucket.states is None or not len(plan.read):
            return step
        return replace(step, states=bucket.states[self._to_device(plan.read)])

    def _choose(self, plan: StepPlan, logits: Tensor, slots: Tensor, order: NDArray[np.intp]) -> LaunchedStep:
        """Samples and appends for `slots` [sampled], row i of which is the
        `order[i]`-th span of the plan that samples.
        """
        rows = self._state.sampling_rows(slots, plan, order)
        chosen = sample(logits, rows)
        times = self.timer.end()
        scores = log_probs(logits, chosen, rows.asks) if rows.asks is not None else None
        result = fail_others(self._state.append(slots, chosen), logits, chosen, rows)
        asking = order[rows.asks.host_rows] if rows.asks is not None else order[:0]
        return LaunchedStep(plan.number, order, result, scores, asking, times)
