"""A step with the layers, from its plan to its tokens: inputs are filled, all is computed in one call, tokens
are chosen and booked.

Owns the times of the steps, and those that are not collected. Called by the torch engine in the thread that
computes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.cpu.adapters import Factors, PackedAdapter
from python_backends.engine.cpu.inputs import StepInputs
from python_backends.engine.cpu.model import OpenModel
from python_backends.engine.slots.adapter_slots import AdapterSlots
from python_backends.engine.slots.log_probs import LogProbRows, log_probs, row_log_probs, scored, unpacked
from python_backends.engine.slots.numbers import fail_others
from python_backends.engine.slots.sampler import GREEDY, SamplingRows, sample
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.step_timer import StepTimer
from python_backends.nouns.request import Finish, Floats, LogProbs
from python_backends.nouns.step import RowLogProbs, StepOutput, StepPlan


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the next step of the same run takes from a step."""

    run: int
    slots: Tensor  # [sampled]
    rows: SamplingRows  # how its tokens were chosen
    tokens: NDArray[np.int64]  # [sampled]


class LayerSteps:
    def __init__(self, state: SlotState, model: OpenModel, adapters: AdapterSlots[PackedAdapter]) -> None:
        self._state, self._model, self._adapters = state, model, adapters
        packed = model.model
        self._inputs = StepInputs(packed.vocab_size, packed.hidden if packed.state_layer else 0, adapters)
        self._timer = StepTimer()
        self._newest: Chosen | None = None
        self._outputs: deque[StepOutput] = deque()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Returns when the tokens of the step are booked."""
        state, inputs = self._state, self._inputs
        before = self._newest if self._newest is not None and self._newest.run == plan.run else None
        state.apply(plan.operations)
        self._adapters.apply(plan.operations)
        if plan.operations:
            inputs.forget_blocks()
        inputs.fill(plan, state.table.numpy())
        if before is None:
            state.book_run()
            slots = torch.from_numpy(plan.slots[plan.samples].astype(np.int64))
            inputs.put_tokens(state.last_tokens[plan.slots[: plan.num_decodes]])
        else:
            slots = before.slots
            inputs.put_tokens(before.tokens)
        is_greedy = before is not None and before.rows is GREEDY
        self._timer.begin()
        with self._model.computing(inputs.table):  # masks of guides take long
            rows = GREEDY if is_greedy else state.sampling_rows(slots, plan)
        logits, are_good = inputs.logits, None
        if rows.take_greatest:
            tokens, are_good = self._model.choose(logits, rows.allowed)
        else:
            tokens = sample(torch.from_numpy(logits), rows).numpy()
        times = self._timer.end(time.monotonic())()
        self._newest = Chosen(plan.run, slots, rows, tokens)
        appended, finishes, scores = self._book(self._newest, logits, are_good)
        self._outputs.append(
            StepOutput(
                plan.number,
                appended.astype(np.int32),
                finishes.astype(np.uint8),
                scores,
                *times,
                self._states(plan),
                self._prompt_log_probs(plan),
            )
        )

    def collect(self) -> StepOutput:
        return self._outputs.popleft()

    def packed_adapter(self, layers: Sequence[Mapping[str, Factors]]) -> PackedAdapter:
        """As the layers take it; `layers`: of each the factors of the products that it changes."""
        return PackedAdapter(layers, self._model.model.is_gated)

    def close(self) -> None:
        self._model.close()

    def _book(
        self, chosen: Chosen, logits: Floats, are_good: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], RowLogProbs | None]:
        """Appends the tokens to their slots. Tokens and finishes [sampled], and log-probabilities. `are_good`
        [sampled]: None if that is still to be seen.
        """
        if chosen.rows is GREEDY:
            tokens, finishes = self._state.append_plain(chosen.run, chosen.slots, chosen.tokens)
            if are_good is not None and not are_good.all():
                finishes = np.where(are_good, finishes, int(Finish.ERROR))
            return tokens, finishes, None
        seen, picked = torch.from_numpy(logits), torch.from_numpy(chosen.tokens)
        scores = _scores(seen, picked, chosen.rows.asks)
        result = self._state.append(chosen.slots, picked)
        if are_good is None:
            fail_others(result, seen, picked, chosen.rows)
        else:
            result.numpy()[1][~are_good] = int(Finish.ERROR)
        tokens, finishes = result.numpy()
        return tokens, finishes, scores

    def _states(self, plan: StepPlan) -> Floats | None:
        """[read, hidden] a copy: the next step is computed into the same memory."""
        states = self._inputs.states[plan.read]
        return states if states.size else None

    def _prompt_log_probs(self, plan: StepPlan) -> LogProbs | None:
        if plan.scored is None:
            return None
        logits, rows = torch.from_numpy(self._inputs.scored), plan.scored
        next_tokens = torch.from_numpy(rows.next_tokens.astype(np.int64))
        return unpacked(scored(logits, next_tokens, min(rows.num_top, logits.shape[1])).numpy())


def _scores(logits: Tensor, tokens: Tensor, asks: LogProbRows | None) -> RowLogProbs | None:
    return None if asks is None else row_log_probs(log_probs(logits, tokens, asks).numpy(), asks.host_rows)
