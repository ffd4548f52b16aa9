"""The requests of `coserving.py`: how many come, and what counts of their tokens."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.common.work import Timing
from benchmarks.coserving.counts import Marks
from benchmarks.coserving.requests import ANSWERS, MEAN_ANSWER, PROMPTS, Times, arrivals, seen

TIMES = Times(0.0, 3.0, 10.0, 15.0)
TOKENS_S = 400.0


def answered(submitted_s: float, count: int, after_s: float, token_s: float) -> Timing:
    tokens = [submitted_s + after_s + token_s * number for number in range(count)]
    return Timing(submitted_s, tokens, tokens[-1])


def test_as_many_tokens_are_asked_for_as_the_load_says() -> None:
    asked = arrivals(TOKENS_S, TIMES, 1000, seed=3)
    measured = asked.jobs[slice(*asked.measured)]
    assert sum(job.max_tokens for job in measured) == TOKENS_S * TIMES.window_s
    assert len(measured) == TOKENS_S * TIMES.window_s / MEAN_ANSWER
    assert all(ANSWERS[0] <= job.max_tokens <= ANSWERS[1] for job in asked.jobs)
    assert all(PROMPTS[0] <= len(job.prompt) <= PROMPTS[1] for job in asked.jobs)
    assert asked.due_s == sorted(asked.due_s)
    assert asked.due_s != arrivals(TOKENS_S, TIMES, 1000, seed=4).due_s


@pytest.mark.parametrize(("after_s", "token_s"), [(0.1, 0.005), (0.4, 0.02), (0.1, 0.02)])
def test_a_server_that_keeps_up_delivers_the_same_tokens_in_the_window_however_slow_it_is(
    after_s: float, token_s: float
) -> None:
    asked = arrivals(TOKENS_S, TIMES, 1000, seed=5)
    timings = [
        answered(due_s, job.max_tokens, after_s, token_s)
        for due_s, job in zip(asked.due_s, asked.jobs, strict=True)
    ]
    window = (TIMES.settle_s, TIMES.settle_s + TIMES.window_s)
    found = seen(timings, timings[slice(*asked.measured)], *window)
    assert found.output_tok_s == pytest.approx(TOKENS_S, rel=1e-3)
    assert found.tpot_s == pytest.approx(token_s)
    assert found.ttft_s == pytest.approx(after_s)


def test_requests_with_the_same_lengths_have_other_prompts() -> None:
    """Else the prefixes of those before the window would be found again at its end."""
    asked = arrivals(TOKENS_S, TIMES, 1000, seed=6)
    prompts = {tuple(job.prompt) for job in asked.jobs}
    assert len(prompts) == len(asked.jobs) > asked.measured[1] - asked.measured[0]


def test_a_request_without_an_end_is_not_within_the_objective() -> None:
    timings = [answered(0.0, 11, 0.1, 0.01), answered(0.0, 11, 0.1, 0.03), Timing(0.0, [0.1, 0.2])]
    found = seen(timings, timings, 0.0, 1.0)
    assert found.num_unanswered == 1
    assert found.attainment(0.02) == pytest.approx(1 / 3)
    assert found.attainment(0.05) == pytest.approx(2 / 3)
    assert len(found.gaps_s) == 10 + 10 + 1


def test_rates_are_those_of_the_window() -> None:
    marks = Marks([0.0, 10.0, 20.0], [0.0, 100.0, 400.0], [0.0, 0.0, 200.0])
    assert marks.rates(10.0, 20.0) == (30.0, 20.0)
    assert marks.rates(5.0, 15.0) == (20.0, 10.0)
    assert np.isfinite(marks.rates(0.0, 1.0)).all()
