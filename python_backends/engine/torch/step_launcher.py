"""Puts all work of a step on the device: slot operations, batch, forward pass, choice of tokens, append.

Nothing of it needs the tokens of the step before on the host. A step in which all rows decode may have a
fixed shape (`decode_step`). Owns the timer. Called by the torch engine, which reads the results.
Tested in tests/cpu/test_decode_step.py and tests/cpu/test_device.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.slots.log_probs import log_probs
from python_backends.engine.slots.sampler import sample
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.step_timer import Seconds, StepTimer
from python_backends.engine.torch.adapters.slot_adapters import SlotAdapters
from python_backends.engine.torch.decode_step import DecodeSteps, Step
from python_backends.engine.torch.decoder import Decoder
from python_backends.engine.torch.step_batch import Batcher, StepBatch, StepBatcher
from python_backends.engine.torch.training.model import TrainedModel
from python_backends.nouns.step import StepPlan
from python_backends.nouns.training import Window

log = logging.getLogger("gapless.instance")


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    number: int
    order: NDArray[np.intp]  # [sampled] of the plan's spans that sample
    result: Tensor  # [2, sampled] tokens and finishes
    log_probs: Tensor | None  # [asking, …] as the device packed them
    asking: NDArray[np.intp]  # [asking] of the plan's spans that sample
    times: Callable[[], Seconds]
    done: Any = None  # a CUDA event: result and log_probs are on the host then; None: they are


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
        if kernels:
            from python_backends.engine.torch.paged_batch import PagedBatcher  # brings Triton's language

            self.batcher: Batcher = PagedBatcher(state, cache, decoder.heads, decoder.windows, adapters)
        else:
            self.batcher = StepBatcher(state, cache, decoder.windows, adapters)
        self.decode_steps: DecodeSteps | None = None
        self.timer = StepTimer()
        self.trained: TrainedModel | None = None  # while adapters are trained

    def fix_shapes(self, capture: Callable[[Step], Step] | None) -> None:
        """From now on, steps in which all rows decode have a fixed shape. `capture`: see `DecodeSteps`."""
        self.decode_steps = DecodeSteps(self._decoder, self._state, self._cache, self.batcher, capture)

    def launch(self, plan: StepPlan) -> LaunchedStep:
        self._state.apply(plan.operations)
        self._adapters.apply(plan.operations)
        if not len(plan.slots):
            nothing = np.zeros(0, np.intp)
            tokens = torch.zeros((2, 0), dtype=torch.int64)
            return LaunchedStep(plan.number, nothing, tokens, None, nothing, lambda: (0.0, 0.0))
        steps = self.decode_steps
        if steps is None or len(plan.tokens) or plan.window or self._adapters.is_used(plan.slots):
            return self._flat(plan)
        return self._decode(plan, steps)

    def _flat(self, plan: StepPlan) -> LaunchedStep:
        batch = self.batcher.batch(plan)
        self.timer.begin()
        logits = self._forward(batch, plan.window)  # [sampled, vocabulary]
        return self._choose(plan, logits, batch.sampling_slots, batch.order)

    def _forward(self, batch: StepBatch, window: Window | None) -> Tensor:
        trained = self.trained
        if window is not None and trained is not None and trained.is_in_blocks:
            try:
                return trained.step(batch, window, self._cache)
            except Exception:
                log.exception("a step is computed without the window of a job")
        return self._decoder.forward(batch, self._cache)

    def _decode(self, plan: StepPlan, steps: DecodeSteps) -> LaunchedStep:
        count, order = len(plan.slots), np.arange(len(plan.slots))
        bucket = steps.bucket(plan.slots)
        self.timer.begin()
        logits = steps.forward(bucket, int(plan.starts.max()) + 1)
        choice = self._state.choice(plan.slots)
        if choice is None:
            return self._choose(plan, logits[:count], bucket.slots[:count], order)
        result = steps.choose(bucket, choice)[:, :count]
        return LaunchedStep(plan.number, order, result, None, order[:0], self.timer.end())

    def _choose(self, plan: StepPlan, logits: Tensor, slots: Tensor, order: NDArray[np.intp]) -> LaunchedStep:
        """Samples and appends for `slots` [sampled], row i of which is the
        `order[i]`-th span of the plan that samples.
        """
        rows = self._state.sampling_rows(slots, plan, order)
        chosen = sample(logits, rows)
        times = self.timer.end()
        scores = log_probs(logits, chosen, rows.asks) if rows.asks is not None else None
        result = self._state.append(slots, chosen)
        asking = order[rows.asks.host_rows] if rows.asks is not None else order[:0]
        return LaunchedStep(plan.number, order, result, scores, asking, times)
