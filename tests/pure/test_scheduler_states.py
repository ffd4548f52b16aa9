"""The slot scheduler over the toy engine, whatever comes: arrivals, cancels, dead engines, too few blocks,
steps in flight, priorities, and predicted lengths that are right, wrong, late, senseless or missing.

Engine and scheduler die together, as an instance does; the machine plays the stream table, which has a
request go on behind the tokens that reached it, in a new life. After every step what the device was told is
compared with what the scheduler believes.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.policies import setting_of
from python_backends.nouns.request import QUANTILE_LEVELS, Finish, LengthPrediction, Request, Sampling
from python_backends.nouns.step import Admit, Grow, PromptLogProbs, Release, StepOutput, StepPlan, Tokens
from python_backends.scheduling import plan_writer
from python_backends.scheduling.lengths import predicted_order
from python_backends.scheduling.lengths.predicted_order import LOOKED_AT
from python_backends.scheduling.policies import POLICIES
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import EngineSettings, ModelSettings, SchedulingSettings, Settings
from tests.support.examples import examples
from tests.support.scheduling import RULES, VOCAB, write_vocabulary
from tests.support.toy_answers import toy_answer
from tests.support.toy_engine import TOY, ToyEngine, toy_log_probs

BLOCKS, BLOCK_TOKENS = 26, 4
MOST_TOKENS = 100  # of prompt and answer; a lone request always fits
BOUND_S = 10.0
BOUND_STEPS = 200  # of sjf
NEVER_EVICT = ("fcfs", "orca")
MOST_SCORED = 6  # rows of a step


@pytest.fixture(scope="module", autouse=True)
def model(tmp_path_factory: pytest.TempPathFactory) -> None:
    SchedulerStates.model = write_vocabulary(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module", autouse=True)
def small_numbers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_writer, "MOST_SCORED", MOST_SCORED)
        yield
    predicted_order.LOOKED_AT = LOOKED_AT


def toy_engine(slots: int) -> ToyEngine:
    engine = EngineSettings(kind=TOY, slots=slots, kv_blocks=BLOCKS, block_tokens=BLOCK_TOKENS)
    return ToyEngine(
        Settings(
            model=ModelSettings(str(SchedulerStates.model), max_model_tokens=MOST_TOKENS + 1), engine=engine
        )
    )


class Device:
    """The slots as a device sees them, from nothing but the plans."""

    def __init__(self) -> None:
        self.generations: dict[int, int] = {}
        self.rows: dict[int, list[int]] = {}  # blocks of each slot

    def take(self, plan: StepPlan) -> None:
        for operation in plan.operations:
            self._operate(operation)
        spans = zip(
            plan.slots.tolist(),
            plan.slot_generations.tolist(),
            plan.starts.tolist(),
            plan.lengths.tolist(),
            strict=True,
        )
        assert len(set(plan.slots.tolist())) == len(plan.slots), "a slot has one span a step"
        for slot, generation, start, length in spans:
            assert self.generations[slot] == generation, "a span is for who sits there"
            self._write(slot, start, start + length)

    def _operate(self, operation: Admit | Grow | Release) -> None:
        if isinstance(operation, Admit):
            assert operation.slot not in self.generations, "a slot belongs to one sequence"
            self.generations[operation.slot] = operation.slot_generation
            self.rows[operation.slot] = operation.blocks.tolist()
            return
        assert self.generations[operation.slot] == operation.slot_generation, (
            "an operation is for who sits there"
        )
        if isinstance(operation, Grow):
            row, last = self.rows[operation.slot], operation.first + len(operation.blocks)
            assert operation.first <= len(row)
            assert last <= len(row) or operation.first == len(row), "more blocks follow, others replace"
            row[operation.first : last] = operation.blocks.tolist()
        else:
            del self.generations[operation.slot], self.rows[operation.slot]

    def _write(self, slot: int, start: int, end: int) -> None:
        written = set(self.rows[slot][start // BLOCK_TOKENS : -(-end // BLOCK_TOKENS)])
        assert len(written) == -(-end // BLOCK_TOKENS) - start // BLOCK_TOKENS, (
            "there is a block for every token"
        )
        others = {block for other, blocks in self.rows.items() if other != slot for block in blocks}
        assert not written & others, "nobody writes where others read"


@dataclass
class Answer:
    """What the streams know of one request."""

    request: Request
    whole: list[int]  # of a run with nothing else in it
    tokens: list[int] = field(default_factory=list)
    scores: dict[int, float] = field(default_factory=dict)  # of the prompt's tokens, by place
    finish: Finish = Finish.RUNNING
    epoch: int = 0
    passed_over: float | None = None  # when first since it last had a slot, by the clock of the bound

    @property
    def is_open(self) -> bool:
        return self.finish == Finish.RUNNING


asks = st.fixed_dictionaries(
    {
        "shared": st.integers(0, 3),
        "length": st.integers(1, 24),
        "max_tokens": st.sampled_from([1, 2, 9, 33, 64]),
        "min_tokens": st.sampled_from([0, 3]),
        "stop_ids": st.sampled_from([(), (3, 4), tuple(range(0, VOCAB, 5))]),
        "seed": st.integers(0, 3),
        "priority": st.integers(-1, 2),
        "scored": st.sampled_from([False, False, True]),
    }
)


def make_request(
    number: int, shared: int, length: int, seed: int, priority: int, scored: bool, **sampling: Any
) -> Request:
    """Prompts begin alike for up to three blocks, and some of them go on alike. A seed of 0 is greedy."""
    prompt = np.append(np.full(shared * BLOCK_TOKENS, 7), np.arange(length) * (1 + number % 3)).astype(
        np.int32
    )
    return Request(
        number,
        prompt,
        Sampling(temperature=float(seed > 0), seed=seed, **sampling),
        priority=priority,
        wants_prompt_log_probs=scored,
    )


def scores_of(request: Request) -> dict[int, float]:
    """Log-probabilities of the prompt's tokens, by place."""
    if not request.wants_prompt_log_probs:
        return {}
    later = enumerate(request.prompt.tolist()[1:], 1)
    return {index: float(toy_log_probs(token, 0, VOCAB).chosen[0]) for index, token in later}


class SchedulerStates(RuleBasedStateMachine):
    model: Path

    @initialize(
        rules=st.sampled_from(sorted(RULES)),
        slots=st.sampled_from([1, 2, 4]),
        budget=st.sampled_from([1, 8, 32]),
        depth=st.integers(1, 3),
        lag=st.integers(0, 2),
        step_s=st.sampled_from([0.0, 1.0]),
        looked_at=st.sampled_from([1, 3, LOOKED_AT]),
    )
    def begin(
        self, rules: str, slots: int, budget: int, depth: int, lag: int, step_s: float, looked_at: int
    ) -> None:
        """`depth` steps are launched before the oldest is read, and `lag` frames of tokens are on their way
        to the streams. More than `looked_at` that wait are a crowd.
        """
        predicted_order.LOOKED_AT = looked_at
        self.rules, self.slots, self.budget, self.depth, self.lag, self.step_s = (
            rules,
            slots,
            budget,
            depth,
            lag,
            step_s,
        )
        self.now_s = 0.0
        self.answers: dict[int, Answer] = {}
        self.start_instance()

    def start_instance(self) -> None:
        self.engine, self.device = toy_engine(self.slots), Device()
        policy, reserve = RULES[self.rules]
        settings = SchedulingSettings(policy)
        self.scheduler = SlotScheduler(
            self.engine.limits, self.budget, settings, reserve, clock=lambda: self.now_s
        )
        self.launched: deque[StepPlan] = deque()
        self.wire: deque[PromptLogProbs | Tokens] = deque()
        self.order: list[int] = []  # of the requests here, by arrival
        self.seated: set[int] = set()

    # --- what happens

    @rule(asks=st.lists(asks, min_size=1, max_size=6))
    def arrive(self, asks: list[dict[str, Any]]) -> None:
        for ask in asks:
            request = make_request(len(self.answers), **ask)
            self.answers[request.request_id] = Answer(
                request, toy_answer(request.prompt, request.sampling, VOCAB)
            )
            self.submit(self.answers[request.request_id])

    @rule(steps=st.integers(1, 4))
    def compute(self, steps: int) -> None:
        for _ in range(steps):
            self.turn()

    @rule(steps=st.integers(5, 30))
    def compute_longer(self, steps: int) -> None:
        self.compute(steps)

    @precondition(lambda self: self.open_answers())
    @rule(
        data=st.data(),
        told=st.sampled_from(["right", "wrong", "nothing"]),
        wrong=st.lists(st.floats(0, 200), min_size=7, max_size=7),
    )
    def predict(self, data: Any, told: str, wrong: list[float]) -> None:
        """At any time: before it has a slot, while it runs, again, or when it is gone."""
        answer = self.draw(data)
        mean, *quantiles = {
            "right": [float(len(answer.whole))] * 7,
            "wrong": sorted(wrong),
            "nothing": [math.nan] * 7,
        }[told]
        assert len(quantiles) == len(QUANTILE_LEVELS)
        self.scheduler.predict(
            answer.request.request_id, LengthPrediction(mean, np.array(quantiles, np.float32))
        )

    @precondition(lambda self: self.open_answers())
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        """Its client is gone: the slot is free for the next plan."""
        answer = self.draw(data)
        answer.finish = Finish.CANCELLED
        self.withdraw(answer)

    @precondition(lambda self: self.open_answers())
    @rule(data=st.data())
    def begin_again(self, data: Any) -> None:
        """As a request that was on trial and has passed: it leaves the instance
        and comes again, behind what was delivered.
        """
        answer = self.draw(data)
        self.withdraw(answer)
        self.submit_again(answer)

    @precondition(lambda self: self.seated)
    @rule()
    def kill(self) -> None:
        """The instance dies with all that was in flight or on the way; the next one gets everything again."""
        self.start_instance()
        self.submit_all_again()

    @precondition(lambda self: self.seated)
    @rule()
    def open_new_session(self) -> None:
        """The streams gave up on an instance that was only asleep."""
        self.scheduler.cancel_all()
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        self.wire.clear()
        self.order, self.seated = [], set()
        self.submit_all_again()

    # --- what always holds

    @invariant()
    def slots_and_blocks_add_up(self) -> None:
        self.scheduler.check_integrity()
        assert self.scheduler.num_running == len(self.seated)
        assert self.scheduler.num_waiting == len(self.order) - len(self.seated)

    @invariant()
    def answers_are_what_an_undisturbed_run_begins_with(self) -> None:
        for answer in self.answers.values():
            assert answer.tokens == answer.whole[: len(answer.tokens)]
            has_ended = answer.finish in (Finish.LENGTH, Finish.STOP)
            assert has_ended == (len(answer.tokens) == len(answer.whole)) or answer.finish == Finish.CANCELLED

    def teardown(self) -> None:
        """Everything ends by itself, with the whole answer, and leaves nothing behind."""
        if not hasattr(self, "answers") or sys.exc_info()[0]:
            return  # it has failed before
        turns = 0
        while self.turn():
            turns += 1
            assert turns < 20_000
        assert self.scheduler.is_idle
        assert not self.open_answers()
        self.answers_are_what_an_undisturbed_run_begins_with()
        self.slots_and_blocks_add_up()
        assert self.scheduler.blocks.num_used == self.scheduler.num_running == 0
        assert self.scheduler.num_evictions == 0 or self.rules not in NEVER_EVICT

    # --- the loop of an instance

    def turn(self) -> bool:
        self.now_s += self.step_s
        plan = self.scheduler.plan()
        self.take_started()
        if plan is not None:
            self.launch(plan)
        reads = bool(self.launched) and (plan is None or len(self.launched) >= self.depth)
        if reads:
            self.read(self.launched.popleft(), self.engine.collect())
        self.slots_and_blocks_add_up()
        while self.wire and (len(self.wire) > self.lag or not reads):
            self.deliver(self.wire.popleft())
        return plan is not None or reads

    def launch(self, plan: StepPlan) -> None:
        self.device.take(plan)
        seats = {sequence.slot: sequence.request_id for sequence in self.scheduler.slots.running()}
        assert set(self.device.generations) == set(seats), (
            "who has ended or was cancelled has left the device with this step"
        )
        assert set(seats.values()) == self.seated
        assert plan.num_tokens <= self.scheduler.token_budget or self.rules == "orca"
        assert plan.scored is None or 1 <= len(plan.scored.rows) <= MOST_SCORED
        self.nothing_is_computed_that_can_be_found(plan)
        self.engine.launch(plan)
        self.launched.append(plan)

    def nothing_is_computed_that_can_be_found(self, plan: StepPlan) -> None:
        """Each full block of a prompt that this step computes is the first with these tokens: nobody else has
        computed it before, or does so in the same step. But for the block of the last token, of which one is
        always computed, and for prompts that are scored. Where one was, a block may outlive the one before
        it: then it is found only when that one is computed again, so only the first of a span is compared.
        Blocks before the span may be found in the copy that a scored prompt has made.
        """
        slots, table = self.scheduler.slots, self.device.rows
        has_scored = any(answer.request.wants_prompt_log_probs for answer in self.answers.values())
        spans = list(zip(plan.slots, plan.starts, plan.lengths, strict=True))
        for slot, start, length in spans[plan.num_decodes :]:
            if slots.sequence(slot).scores_prompt:
                continue
            first = start // BLOCK_TOKENS
            tokens = slots.tokens[slot, : min(start + length, slots.targets[slot] - 1)]
            last = len(tokens) // BLOCK_TOKENS
            if last > first:
                last = first + 1 if has_scored else last
                assert self.scheduler.blocks.match(tokens, [])[first:last] == table[int(slot)][first:last]

    def take_started(self) -> None:
        """Who is put before others that came earlier does not hold them up for longer than the bound."""
        running = {sequence.request_id for sequence in self.scheduler.slots.running()}
        self.seated -= {evicted.request_id for evicted in self.scheduler.take_evicted()}
        assert self.seated <= running
        for started in self.scheduler.take_started():
            if started.request_id in self.seated:
                assert started.num_prefix_hit_tokens > 0, "it is said again only of what was found later"
                continue
            self.seated.add(started.request_id)
            self.answers[started.request_id].passed_over = None
            for number in self.order[: self.order.index(started.request_id)]:
                if number not in self.seated:
                    self.pass_over(self.answers[number])

    def pass_over(self, answer: Answer) -> None:
        assert self.rules != "orca", "this policy goes by arrival alone"
        now, bound = (self.scheduler.num_steps, BOUND_STEPS) if self.rules == "sjf" else (self.now_s, BOUND_S)
        answer.passed_over = now if answer.passed_over is None else answer.passed_over
        assert now < answer.passed_over + bound, "passed over for too long"

    def read(self, plan: StepPlan, output: StepOutput) -> None:
        scores = self.scheduler.prompt_log_probs(plan, output)
        tokens = self.scheduler.apply(plan, output)
        self.wire += [tokens] if scores is None else [scores, tokens]
        for number in tokens.request_ids[tokens.finishes != Finish.RUNNING].tolist():
            self.order.remove(number)
            self.seated.remove(number)

    # --- the streams

    def deliver(self, message: PromptLogProbs | Tokens) -> None:
        if isinstance(message, Tokens):
            self.deliver_tokens(message)
        else:
            self.deliver_scores(message)

    def deliver_scores(self, scores: PromptLogProbs) -> None:
        columns = (scores.request_ids, scores.request_epochs, scores.indices, scores.values.chosen)
        for number, epoch, index, value in zip(*(column.tolist() for column in columns), strict=True):
            answer = self.answers[number]
            assert answer.request.wants_prompt_log_probs
            if answer.is_open and answer.epoch == epoch:
                assert not answer.tokens, "before the first token"
                answer.scores[index] = value

    def deliver_tokens(self, tokens: Tokens) -> None:
        rows = zip(
            tokens.request_ids,
            tokens.request_epochs,
            tokens.indices,
            tokens.tokens,
            tokens.finishes,
            strict=True,
        )
        for number, epoch, index, token, finish in rows:
            answer = self.answers[int(number)]
            if answer.is_open and answer.epoch == epoch:
                assert index == len(answer.tokens), "tokens come in order, none twice"
                answer.tokens.append(int(token))
                assert answer.scores == scores_of(answer.request)
                answer.finish = Finish(int(finish))

    def open_answers(self) -> list[Answer]:
        return [answer for answer in self.answers.values() if answer.is_open]

    def draw(self, data: Any) -> Answer:
        return self.answers[
            data.draw(st.sampled_from([answer.request.request_id for answer in self.open_answers()]))
        ]

    def submit(self, answer: Answer) -> None:
        self.scheduler.submit(answer.request, np.array(answer.tokens, np.int32), answer.epoch)
        self.order.append(answer.request.request_id)

    def submit_again(self, answer: Answer) -> None:
        answer.epoch += 1
        answer.passed_over = None
        self.submit(answer)

    def submit_all_again(self) -> None:
        for answer in self.open_answers():
            self.submit_again(answer)

    def withdraw(self, answer: Answer) -> None:
        """It may have ended already, with its last tokens on their way."""
        number = answer.request.request_id
        assert self.scheduler.cancel(number) == (number in self.order)
        assert not self.scheduler.cancel(number)
        self.order = [other for other in self.order if other != number]
        self.seated.discard(number)


def test_every_policy_is_driven_by_the_state_machine() -> None:
    assert {policy for policy, _ in RULES.values()} == {*POLICIES, setting_of("sjf")}
    assert set(NEVER_EVICT) == {name for name, policy in POLICIES.items() if not policy.looks_ahead}


TestSchedulerStates = SchedulerStates.TestCase
TestSchedulerStates.settings = hypothesis.settings(examples, stateful_step_count=30)
