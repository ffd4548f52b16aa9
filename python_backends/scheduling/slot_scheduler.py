"""The slot scheduler: plans each step of one instance and applies its tokens.

Owns the sequences and decides which of them are evicted; touches no tensor. The admission says which get a
slot, the allocator gives and takes slots, the plan writer says what a step computes, the booking what came of
it. The instance loop calls `submit` and `cancel` for what came in, `plan` for the next step, and `apply` with
what the engine made of it; plans may be some steps ahead of what has been applied. Work per step grows with
what changes: a step of a run looks at no row by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.load import Load
from python_backends.nouns.messages import ANY_EPOCH, Failed
from python_backends.nouns.request import (
    AdapterVersion,
    Finish,
    Ids,
    LengthPrediction,
    ModelLimits,
    Request,
)
from python_backends.nouns.step import (
    Evicted,
    HiddenStates,
    PromptLogProbs,
    SlotFailure,
    Started,
    StepOutput,
    StepPlan,
    Tokens,
)
from python_backends.scheduling.adapters import LoadedAdapters
from python_backends.scheduling.admission import Admission, Contention
from python_backends.scheduling.booking import Booking
from python_backends.scheduling.guides import GuidesOfWaiting
from python_backends.scheduling.handover import Handover
from python_backends.scheduling.outlook import Outlook
from python_backends.scheduling.plan_writer import PlanWriter
from python_backends.scheduling.policies import policy_of
from python_backends.scheduling.policies.fcfs import reserve_max_tokens
from python_backends.scheduling.reading import Reading
from python_backends.scheduling.state.allocator import Allocator
from python_backends.scheduling.state.roster import Roster
from python_backends.scheduling.state.sequence import Sequence, Status, check_ids
from python_backends.scheduling.state.view import Reserve
from python_backends.scheduling.waiting import WaitingList
from python_backends.settings import SchedulingSettings

DEFAULTS = SchedulingSettings()
NO_TOKEN = (
    "no token can be chosen: the model's logits are not finite numbers (wrong weights?), all that it could"
    " write are banned, or its guide became too expensive to follow"
)


class SlotScheduler:
    allocator: type[Allocator] = Allocator

    def __init__(
        self,
        limits: ModelLimits,
        token_budget: int = 256,
        settings: SchedulingSettings = DEFAULTS,
        reserve: Reserve | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.token_budget = limits.step_tokens(token_budget)
        self.policy = policy_of(settings)
        self._allocator = self.allocator(
            limits, reserve or self._reserve, grows_by_need=self.policy.looks_ahead
        )
        self.slots = self._allocator.slots
        self.blocks = self._allocator.blocks
        self.outlook = Outlook(self.policy, settings, self._allocator, clock)
        self._plans = PlanWriter(
            self._allocator,
            self.outlook,
            self.policy,
            self.token_budget,
            limits.row_multiple,
            Reading(self.slots, limits.state_layer > 0),
        )
        self._booking = Booking(self.slots)
        self.num_evictions = 0
        self._clock = clock
        bound, bound_clock = self.policy.max_passed_over_s, clock
        if self.policy.max_passed_over_steps:
            bound, bound_clock = self.policy.max_passed_over_steps, lambda: self._plans.num_steps
        self._waiting = WaitingList(
            bound, bound_clock, self.policy.by_priority, self.outlook.order, limits.block_tokens
        )
        self.adapters = LoadedAdapters(self.slots, self._waiting)
        self.guides = GuidesOfWaiting(self._waiting)
        self._admission = Admission(
            self.policy, self._allocator, self.outlook, self._waiting, self.adapters, self.guides
        )
        self._roster = Roster()
        self.handover = Handover(
            self._allocator, self._admission, self._plans, self.adapters, self._enter, limits.vocab_size
        )
        self._last_leave = 0  # number of the first step after the last time that a slot was given up
        self._in_flight = 0
        self._evicted: list[Evicted] = []
        self._failed: list[Failed] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return self.slots.num_busy - self.slots.num_reserved

    @property
    def num_steps(self) -> int:
        """Planned so far."""
        return self._plans.num_steps

    @property
    def first_running(self) -> int:
        """The number of the oldest step that was planned and not applied, or of the next one."""
        return self._plans.num_steps - self._in_flight

    @property
    def peak_blocks(self) -> int:
        """The most KV blocks that will be in use, as admission computes it."""
        if self.policy.looks_ahead and self.outlook.future.has_curve:
            return round(self.outlook.future.peak_blocks)
        return self.blocks.num_used + self._allocator.num_promised_blocks

    @property
    def future_blocks(self) -> int:
        """The most KV blocks that the requests with a slot will use, as predicted."""
        future = self.outlook.future
        if future.has_curve:
            return round(future.peak_blocks)
        return round(future.peak_of_running())

    def load(self) -> Load:
        """What this instance carries."""
        return Load(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_slots=self.limits.num_slots,
            num_used_blocks=self.blocks.num_used,
            num_retained_blocks=self.blocks.num_retained,
            num_borrowed_blocks=self.blocks.num_borrowed,
            num_blocks=self.limits.num_blocks,
            num_evictions=self.num_evictions,
            peak_blocks=self.peak_blocks,
            is_contested=self._admission.contention is not Contention.AMPLE,
            wait_reason=self._admission.wait_reason,
            num_reserved_slots=self.slots.num_reserved,
            num_high_priority=self._roster.num_high_priority,
            waiting_blocks=self._waiting.num_blocks,
            head_blocks=self._waiting.num_head_blocks,
            num_prefill_tokens=self.slots.num_prefill_tokens,
            future_blocks=self.future_blocks,
            step_s=self.outlook.step_s,
            num_adapters=self.adapters.num_loaded,
        )

    @property
    def is_idle(self) -> bool:
        return not len(self._roster) and not self._in_flight and self.handover.is_idle

    def submit(self, request: Request, delivered: Ids, request_epoch: int = 0, age_s: float = 0.0) -> None:
        """Takes a request that is to go on after the output tokens `delivered`, and that came to its first
        instance `age_s` ago. The door has checked that it fits the model.

        Raises ValueError if it does not fit: a token id outside the vocabulary would end the engine, and all
        its streams.
        """
        sequence = self.new_sequence(request, delivered, request_epoch, age_s)
        # an earlier epoch of it, if the scheduler model had given this instance up
        self.cancel(request.request_id)
        self._roster.enter(sequence)
        self._waiting.add(sequence)
        self._admission.reopen()

    def predict(self, request_id: int, prediction: LengthPrediction) -> None:
        """Uses `prediction` for a request from now on. Ignored if the request isn't here (any more) or this
        can't be a length.
        """
        sequence = self._roster.find(request_id)
        if sequence is not None and prediction.is_sane:
            sequence.prediction = prediction
            self.outlook.predicted(sequence)

    def refresh(self) -> None:
        """Computes the order of the waiting and the future memory again, if that is due. `plan` does it
        before it admits; a loop with time while the device computes calls it then.
        """
        self._admission.refresh()

    def cancel(self, request_id: int, request_epoch: int = ANY_EPOCH) -> bool:
        """Ends a request at once, or only this life of it: its slot is free for the next plan. False if it
        isn't here (any more).
        """
        sequence = self._roster.find(request_id)
        if sequence is None or request_epoch not in (ANY_EPOCH, sequence.request_epoch):
            return False
        self._roster.leave(sequence)
        if sequence.status is Status.WAITING:
            self._waiting.remove(sequence)
            sequence.status = Status.FINISHED
            self._admission.reopen()  # others may have waited only because of it
        else:
            self._leave(sequence, Status.FINISHED)
        return True

    def adapter_loaded(self, digest: str) -> None:
        """Sequences with this adapter may get a slot."""
        self.adapters.add(digest)
        self._admission.reopen()

    def guides_prepared(self) -> None:
        """Sequences that waited for their guides may get a slot."""
        self.guides.forget_missing()
        self._admission.reopen()

    def fail_waiting(self, adapter: AdapterVersion, error: str) -> list[Failed]:
        """Ends all that wait for this adapter; returns what the scheduler model is told."""
        sequences = self.adapters.failed(adapter)
        for sequence in sequences:
            self.cancel(sequence.request_id)
        return [Failed(sequence.request_id, error, sequence.request_epoch) for sequence in sequences]

    def cancel_all(self) -> None:
        for request_id in self._roster.request_ids():
            self.cancel(request_id)

    def plan(self) -> StepPlan | None:
        """The plan of the next step, or None if there is nothing to do
        before more requests or outputs come.
        """
        if self._in_flight >= self.policy.max_in_flight:
            return None
        if self.slots.num_free:
            self._admission.refresh()
        if self._plans.is_in_run and not self._admission.is_due:
            plan: StepPlan | None = self._plans.go_on()
        else:
            if not self._grow():  # no admission after an eviction: it would cause the next eviction
                self._admit()
            plan = self._plans.write()
        self._in_flight += plan is not None
        return plan

    def apply(self, plan: StepPlan, output: StepOutput) -> Tokens:
        """Books the tokens of the oldest launched step. Rows are dropped if
        their slot is empty or has a newer generation.
        """
        self._in_flight -= 1
        if Finish.ERROR in output.finishes.tobytes():  # a fraction of the time of a comparison by numpy
            self._fail_rows(plan, output.finishes == Finish.ERROR)
        if plan.number >= self._last_leave and not len(plan.tokens):  # decode rows, all still in their slots
            tokens, ended = self._booking.book_all(plan, output)
        else:
            tokens, ended = self._booking.book_current(
                plan.slots[plan.samples], plan.slot_generations[plan.samples], output
            )
        self._finish(ended)
        return tokens

    def hidden_states(self, plan: StepPlan, output: StepOutput) -> HiddenStates | None:
        """Those that were read in the oldest launched step, not applied yet; None: there are none."""
        return self._booking.hidden_states(plan, output, self.limits.state_layer)

    def prompt_log_probs(self, plan: StepPlan, output: StepOutput) -> PromptLogProbs | None:
        """Those of the oldest launched step, not applied yet; None: there are none."""
        return self._booking.prompt_log_probs(plan, output)

    def take_started(self) -> list[Started]:
        """The requests that got a slot since the last call."""
        return self._allocator.take_started()

    def take_evicted(self) -> list[Evicted]:
        """The requests that lost their slot since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def take_failed(self) -> list[Failed]:
        """The requests that the engine reported as failed since the last call."""
        failed, self._failed = self._failed, []
        return failed

    def check_integrity(self) -> None:
        """Checks the counts of slots and blocks against the sequences. Raises AssertionError."""
        self._allocator.check_integrity()
        self._waiting.check_integrity()
        self.outlook.future.check_integrity()
        assert int(self.slots.live.sum()) + len(self._waiting) == len(self._roster), (
            "a sequence is neither waiting nor running"
        )

    # --- what a move needs

    def find(self, request_id: int) -> Sequence | None:
        """The sequence of a request that waits or runs here."""
        return self._roster.find(request_id)

    def new_sequence(
        self, request: Request, delivered: Ids, request_epoch: int, age_s: float = 0.0
    ) -> Sequence:
        """A sequence that came to its first instance `age_s` ago, and not yet into a slot or the queue.

        Raises ValueError if it does not fit the model.
        """
        num_tokens = len(request.prompt) + len(delivered)
        if num_tokens >= self.limits.max_model_tokens or len(delivered) >= request.sampling.max_tokens:
            raise ValueError(
                f"one more token than {num_tokens} doesn't fit into {self.limits.max_model_tokens}"
            )
        check_ids(request, delivered, self.limits.vocab_size)
        if request.adapter.digest and not self.adapters.is_served:
            raise ValueError(f"lora_name = {request.adapter.full_name!r}: this instance has no adapters")
        return Sequence(request, delivered, 0, request_epoch, self._clock() - age_s)

    def _enter(self, sequence: Sequence, num_shared: int) -> None:
        """`sequence` has got a slot, after it ran in another instance; others hold `num_shared` of its blocks
        as well. An earlier life of its request ends.
        """
        self.cancel(sequence.request_id)
        self._roster.enter(sequence)
        self.adapters.used(sequence)
        self.outlook.future.seat(sequence, num_shared)

    # --- growing and evicting

    def _grow(self) -> bool:
        """Blocks for the slots whose next token has none. True: no block
        was free, and a sequence was evicted.
        """
        before = self.num_evictions
        table = self.slots
        decodes = table.decoding()
        for slot in sorted(
            decodes[table.planned[decodes] > table.capacity[decodes]].tolist(), key=table.arrival
        ):
            sequence = table.sequences[slot]
            if sequence is not None:  # not evicted for an earlier one in this loop
                self._grow_one(sequence)
        return self.num_evictions > before

    def _grow_one(self, sequence: Sequence) -> None:
        while self.blocks.num_available == 0:
            least = self.policy.victim(self.slots.evictable(), self.outlook.future.rest_tokens)
            self._evict(least)
            if least is sequence:
                return
        self._allocator.grow(sequence)

    def _evict(self, sequence: Sequence) -> None:
        """Makes `sequence` wait again, at its place by arrival. It
        keeps its tokens; they are computed again.
        """
        self._leave(sequence, Status.WAITING)
        sequence.num_evictions += 1
        self._waiting.add(sequence)
        self._evicted.append(Evicted(sequence.request_id, sequence.request_epoch))
        self.num_evictions += 1

    # --- admission

    def _admit(self) -> None:
        if not self._admission.is_due:
            return
        for sequence in self._admission.select():
            self._waiting.seat(sequence)
            sequence.got_slot_s = self._clock()
            self.adapters.used(sequence)
            self.outlook.future.seat(sequence, self._allocator.seat(sequence))
        self._admission.settle()

    def _reserve(self, sequence: Sequence) -> int:
        return (
            self.outlook.future.reserve(sequence) if self.policy.looks_ahead else reserve_max_tokens(sequence)
        )

    # --- leaving

    def _fail_rows(self, plan: StepPlan, is_broken: NDArray[np.bool_]) -> None:
        """`is_broken`: [sampled]"""
        for row in np.flatnonzero(plan.samples)[is_broken].tolist():
            self._fail(SlotFailure(int(plan.slots[row]), int(plan.slot_generations[row]), NO_TOKEN))

    def _fail(self, failure: SlotFailure) -> None:
        """Ends a request that still has its slot; no other one finds the blocks that were computed for it."""
        sequence = self.slots.sequences[failure.slot]
        if sequence is not None and self.slots.generations[failure.slot] == failure.slot_generation:
            self._failed.append(Failed(sequence.request_id, failure.error, sequence.request_epoch))
            self._allocator.forget(sequence)
            self.cancel(sequence.request_id)

    def _finish(self, slots: list[int]) -> None:
        for slot in slots:
            sequence = self.slots.sequence(slot)
            self._roster.leave(sequence)
            self._leave(sequence, Status.FINISHED)
            self.outlook.future.lengths.ended(sequence.num_output_tokens)

    def _leave(self, sequence: Sequence, status: Status) -> None:
        self.outlook.future.leave(sequence.slot)
        self._allocator.unseat(sequence)
        self.adapters.left(sequence, self._plans.num_steps)
        sequence.status = status
        self._admission.reopen()
        self._last_leave = self._plans.num_steps
