"""The two ways in which `scheduling` serves a load: the instance's own loop with a real engine, and the
same slot scheduler with a simulated engine (known lengths and a model of step time) by a virtual clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.given_lengths import GivenLengths
from benchmarks.scheduling.requests import Pool, Source
from python_backends.engine.protocol import Engine
from python_backends.instance.loop import Instance
from python_backends.nouns.messages import Predicted, Submit
from python_backends.nouns.request import ModelLimits, Request
from python_backends.nouns.step import Started, StepOutput, StepPlan, Tokens
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.step_time import StepTime
from python_backends.settings import SchedulingSettings, Settings

PREDICTED_AFTER_S = 0.02  # time from the request to the predictor's answer
TOKEN_BUDGET = 256
Doubles = NDArray[np.float64]
NOTHING = np.zeros(0, np.int32)
PREFILL = 2  # the index of prefill tokens among a step's loads
NUM_ERRORS = 4096  # drawn for each kind of steps


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """n requests in order of arrival: when they arrive, and which of the pool's prompts they have."""

    pool: Pool
    due_s: Doubles  # [n]; all 0 in a closed loop
    places: NDArray[np.int64]  # [n]
    in_flight: int = 0  # of a closed loop; 0: they arrive when they are due
    source: Source = Source.FOREST  # of predictions
    distinct: bool = False  # every prompt repeats a different token: no prefix of another one is found


@dataclass(slots=True, eq=False)
class Served:
    """The results of the requests of `work`, and the messages to the instance."""

    work: Work
    now_s: float = 0.0
    num_submitted: int = 0
    num_predicted: int = 0
    num_ended: int = 0
    num_evictions: int = 0
    passed_over_s: float = 0.0  # the longest from the first time that a request was passed over to the last
    arrived_s: Doubles = field(init=False)
    first_s: Doubles = field(init=False)
    last_s: Doubles = field(init=False)
    counts: NDArray[np.int64] = field(init=False)
    _first_passed_s: Doubles = field(init=False)
    _waits: NDArray[np.bool_] = field(init=False)
    _oldest: int = 0
    _later: list[Predicted] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = len(self.work.places)
        self.arrived_s, self.first_s, self.last_s = (
            self.work.due_s.copy(),
            np.full(n, np.nan),
            np.full(n, np.nan),
        )
        self.counts, self._first_passed_s, self._waits = (
            np.zeros(n, np.int64),
            np.full(n, np.inf),
            np.zeros(n, np.bool_),
        )

    @property
    def is_over(self) -> bool:
        return self.num_ended == len(self.work.places)

    @property
    def next_s(self) -> float:
        """When the next request arrives; infinite if there is none."""
        return (
            float(self.work.due_s[self.num_submitted])
            if self.num_submitted < len(self.work.places)
            else np.inf
        )

    def news(self, now_s: float) -> list[Submit | Predicted]:
        """Returns the messages to the instance at this time."""
        self.now_s = now_s
        news: list[Submit | Predicted] = []
        while self._is_next_due():
            number = self.num_submitted
            if self.work.in_flight:
                self.arrived_s[number] = now_s
            self._waits[number] = True
            news.append(Submit(self._request(number), NOTHING, 0))
            self.num_submitted += 1
        return news + self._predictions(now_s)

    def _predictions(self, now_s: float) -> list[Predicted]:
        told, self._later = self._later, []
        if self.work.source is Source.NONE:
            return told
        while (
            self.num_predicted < self.num_submitted
            and self.arrived_s[self.num_predicted] + PREDICTED_AFTER_S <= now_s
        ):
            number, place = self.num_predicted, int(self.work.places[self.num_predicted])
            told.append(Predicted(number, self.work.pool.prediction(place, self.work.source)))
            self.num_predicted += 1
        return told

    def started(self, requests: Sequence[Started]) -> None:
        for each in requests:
            number = each.request_id
            if not self._waits[number]:
                continue  # more of its prompt was found, or it was evicted
            self._waits[number] = False
            while self._oldest < number and not self._waits[self._oldest]:
                self._oldest += 1
            passed = self._oldest + np.flatnonzero(self._waits[self._oldest : number])
            if len(passed):
                self._first_passed_s[passed] = np.minimum(self._first_passed_s[passed], self.now_s)
                self.passed_over_s = max(
                    self.passed_over_s, self.now_s - float(self._first_passed_s[passed].min())
                )

    def tokens(self, tokens: Tokens, now_s: float) -> None:
        self.now_s = now_s
        numbers = tokens.request_ids
        for number in numbers[self.counts[numbers] == 0].tolist():
            later = self.work.pool.later(int(self.work.places[number]), self.work.source)
            if later is not None:
                self._later.append(Predicted(number, later))
        self.first_s[numbers] = np.where(self.counts[numbers] == 0, now_s, self.first_s[numbers])
        self.last_s[numbers] = now_s
        self.counts[numbers] += 1
        self.num_ended += int(np.count_nonzero(tokens.finishes))

    def _is_next_due(self) -> bool:
        if self.num_submitted == len(self.work.places):
            return False
        if self.work.in_flight:
            return self.num_submitted - self.num_ended < self.work.in_flight
        return bool(self.work.due_s[self.num_submitted] <= self.now_s)

    def _request(self, number: int) -> Request:
        request = self.work.pool.request(number, int(self.work.places[number]))
        return (
            request.changed(prompt=np.full(len(request.prompt), number, np.int32))
            if self.work.distinct
            else request
        )


# --- by a virtual clock


class Steps:
    """The times of real steps, from one to the next."""

    def __init__(self) -> None:
        self._times = StepTime()
        self._loads: list[tuple[float, ...]] = []
        self._seconds: list[float] = []

    def observe(self, plan: StepPlan, seconds: float) -> None:
        self._loads.append(self._times.loads(plan))
        self._seconds.append(seconds)

    def machine(self) -> Machine:
        """Returns a machine with these step times: a model fitted by least squares to all steps. Each
        simulated step draws its relative error from the real steps of its kind, so that the sum of times is
        the same.
        """
        loads, seconds = np.array(self._loads, np.float64), np.array(self._seconds)
        step_time = StepTime()
        step_time.learn(loads, seconds)
        expected_s = np.array([step_time.seconds(*each) for each in loads])
        kinds = [np.flatnonzero((loads[:, PREFILL] > 0) == with_prompts) for with_prompts in (False, True)]
        errors, random = [], np.random.default_rng(0)
        for kind in kinds:
            likely = expected_s[kind] / expected_s[kind].sum()
            errors.append(
                random.choice(seconds[kind] / expected_s[kind], NUM_ERRORS, p=likely)
                if len(kind)
                else np.ones(1)
            )
        return Machine(step_time, errors[False], errors[True])


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """The times of steps: a model of step time, and measured / expected of real steps, separately for steps
    with prompts.
    """

    step_time: StepTime
    decode_errors: Doubles
    prompt_errors: Doubles

    @staticmethod
    def exact(coefficients: Sequence[float]) -> Machine:
        times = StepTime()
        times.coefficients = list(coefficients)
        return Machine(times, np.ones(1), np.ones(1))

    def seconds(self, plan: StepPlan) -> float:
        errors = self.prompt_errors if len(plan.tokens) else self.decode_errors
        return self.step_time.expected_s(plan) * float(errors[plan.number % len(errors)])


def simulate(limits: ModelLimits, settings: SchedulingSettings, work: Work, machine: Machine) -> Served:
    served = Served(replace(work, distinct=True))
    scheduler = SlotScheduler(limits, TOKEN_BUDGET, settings, clock=lambda: served.now_s)
    engine = GivenLengths(scheduler, work.pool.lengths[work.places])
    while not served.is_over:
        for message in served.news(served.now_s):
            if isinstance(message, Submit):
                scheduler.submit(message.request, message.delivered)
            else:
                scheduler.predict(message.request_id, message.prediction)
        plan = scheduler.plan()
        if plan is None:
            served.now_s = max(served.now_s, served.next_s)
            continue
        served.started(scheduler.take_started())
        seconds = machine.seconds(plan)
        scheduler.outlook.step_time.observe(plan, seconds)
        engine.launch(plan)
        served.tokens(scheduler.apply(plan, engine.collect(plan)), served.now_s + seconds)
    served.num_evictions = scheduler.num_evictions
    return served


# --- with a real engine


class _Link:
    """Gives requests to the loop when they are due, and its messages to `served`."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._began_s = time.monotonic()
        self.rested_s = 0.0  # when it last waited for requests

    def receive(self, timeout_s: float) -> list[Any]:
        news = self._served.news(time.monotonic() - self._began_s)
        if news or not timeout_s:
            return news
        time.sleep(max(0.0, min(timeout_s, self._served.next_s - self._served.now_s)))
        self.rested_s = time.monotonic()
        return self._served.news(self.rested_s - self._began_s)

    def publish(self, messages: Sequence[Any]) -> None:
        now_s = time.monotonic() - self._began_s
        self._served.started([message for message in messages if isinstance(message, Started)])
        for message in messages:
            if isinstance(message, Tokens):
                self._served.tokens(message, now_s)


class _Paced:
    """An engine whose steps are timed from one to the next, including the loop's own time."""

    plans_steps = False

    def __init__(self, engine: Engine, link: _Link, steps: Steps) -> None:
        self.limits = engine.limits
        self._engine = engine
        self._link = link
        self._steps = steps
        self._plan: StepPlan | None = None
        self._collected_s = time.monotonic()

    def launch(self, plan: StepPlan) -> None:
        self._plan = plan
        self._engine.launch(plan)

    def collect(self) -> StepOutput:
        output, now_s = self._engine.collect(), time.monotonic()
        assert self._plan is not None
        self._steps.observe(self._plan, now_s - max(self._collected_s, self._link.rested_s))
        self._collected_s = now_s
        return output

    def close(self) -> None:
        self._engine.close()


def serve(engine: Engine, settings: Settings, work: Work, steps: Steps) -> Served:
    """Serves `work` by the instance's loop. Adds the times of steps to `steps`."""
    served = Served(work)
    scheduler = SlotScheduler(engine.limits, settings.engine.token_budget, settings.scheduling)
    link = _Link(served)
    instance = Instance(scheduler, _Paced(engine, link, steps), link, lambda _: None)
    while not served.is_over:
        instance.turn()
    served.num_evictions = scheduler.num_evictions
    return served
