"""The requests of `coserving`: when they come, the link that gives them to an instance and records their
tokens, and what their clients see of it.

Arrivals are those of a Poisson process, with the number of requests that the load asks for. Those before the
measured window are the ones of its end, and those after it the ones of its beginning: a server that keeps up
delivers the same number of tokens in the window, however long an answer takes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.clients import Clients, requests_of
from benchmarks.common.work import Job, Timing

PROMPTS, ANSWERS = (64, 256), (32, 128)  # tokens: the fewest and the most
MEAN_ANSWER = sum(ANSWERS) / 2

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a run: of training before the first requests come; of requests before the measured window,
    of the window, and at most after it.
    """

    warm_up_s: float
    settle_s: float
    window_s: float
    most_after_s: float


@dataclass(frozen=True, slots=True)
class Arrivals:
    jobs: list[Job]
    due_s: list[float]  # after the start of the run
    measured: tuple[int, int]  # the jobs [first, last) that come in the window


NONE = Arrivals([], [], (0, 0))


def arrivals(tokens_s: float, times: Times, vocabulary: int, seed: int) -> Arrivals:
    """Requests that ask for `tokens_s` output tokens a second on average."""
    generator = np.random.default_rng(seed)
    count = max(1, round(tokens_s / MEAN_ANSWER * times.window_s))
    # the arrivals of a Poisson process whose number is known are independent and uniform
    one_s = np.sort(generator.uniform(0, times.window_s, count))
    prompts = generator.integers(PROMPTS[0], PROMPTS[1] + 1, count)
    answers = spread(generator, count)
    turns = range(-int(times.settle_s // times.window_s) - 1, int(times.most_after_s // times.window_s) + 2)
    due_s = np.concatenate([one_s + turn * times.window_s for turn in turns]) + times.settle_s
    here = (due_s >= 0) & (due_s < times.settle_s + times.window_s + times.most_after_s)
    jobs = [
        Job(generator.integers(0, vocabulary, prompts[number % count]).tolist(), int(answers[number % count]))
        for number in np.flatnonzero(here)
    ]
    due_s = due_s[here]
    first, last = np.searchsorted(due_s, [times.settle_s, times.settle_s + times.window_s])
    return Arrivals(jobs, due_s.tolist(), (int(first), int(last)))


def spread(generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Lengths of `count` answers, whose mean is that of ANSWERS."""
    chosen = generator.integers(ANSWERS[0], ANSWERS[1] + 1, count)
    while (off := round(MEAN_ANSWER * count) - int(chosen.sum())) != 0:
        can = np.flatnonzero((chosen < ANSWERS[1]) if off > 0 else (chosen > ANSWERS[0]))
        chosen[generator.choice(can, min(abs(off), len(can)), replace=False)] += 1 if off > 0 else -1
    return chosen


def at_once(count: int, vocabulary: int, seed: int) -> Arrivals:
    """All come at the start; all are measured."""
    generator = np.random.default_rng(seed)
    prompts = generator.integers(PROMPTS[0], PROMPTS[1] + 1, count)
    answers = generator.integers(ANSWERS[0], ANSWERS[1] + 1, count)
    jobs = [
        Job(generator.integers(0, vocabulary, prompt).tolist(), int(answer))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return Arrivals(jobs, [0.0] * count, (0, count))


class OpenLoop(Clients):
    """Also records when the loop waits because it has nothing to do."""

    def __init__(self, asked: Arrivals) -> None:
        super().__init__(requests_of(asked.jobs), asked.due_s)
        self._first, self._last = asked.measured
        self.waits_s: list[tuple[float, float]] = []

    def receive(self, timeout_s: float) -> list[Any]:
        began_s = time.perf_counter()
        news = super().receive(timeout_s)
        if timeout_s:
            self.waits_s.append((began_s, time.perf_counter()))
        return news

    @property
    def began_s(self) -> float:
        return self._began_s

    @property
    def measured(self) -> list[Timing]:
        return self.timings[self._first : self._last]

    @property
    def has_answered(self) -> bool:
        """All requests that came in the window have ended."""
        measured = self.measured
        return len(measured) == self._last - self._first and all(each.ended for each in measured)

    def waited_s(self, begin_s: float, end_s: float) -> float:
        waits = np.array(self.waits_s or [(0.0, 0.0)])
        return float((waits.clip(begin_s, end_s) @ [-1.0, 1.0]).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What clients see of the requests of one window. Arrays in seconds; a request that has not ended by the
    end of the run has no time to its last token, and counts as one that took too long.
    """

    output_tok_s: float
    ttft_s: Seconds
    tpot_s: Seconds  # of each request: first to last token, by the tokens after the first
    gaps_s: Seconds  # between tokens
    num_unanswered: int

    def attainment(self, slo_s: float) -> float:
        """The share of requests whose time per output token is within `slo_s`."""
        return float((self.tpot_s <= slo_s).sum()) / max(1, len(self.tpot_s) + self.num_unanswered)


def seen(timings: Sequence[Timing], measured: Sequence[Timing], begin_s: float, end_s: float) -> Seen:
    """`timings` of all requests of a run, `measured` those that came in the window [begin_s, end_s)."""
    ended = [np.array(each.tokens) for each in measured if each.ended]
    first_s = [each.tokens[0] - each.submitted for each in measured if each.tokens]
    count = sum(begin_s <= token < end_s for each in timings for token in each.tokens)
    return Seen(
        output_tok_s=count / (end_s - begin_s),
        ttft_s=np.array(first_s),
        tpot_s=np.array([(each[-1] - each[0]) / (len(each) - 1) for each in ended]),
        gaps_s=np.concatenate([np.zeros(0), *(np.diff(each.tokens) for each in measured)]),
        num_unanswered=len(measured) - len(ended),
    )
