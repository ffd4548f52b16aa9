"""One of two instances is killed: what the streams of the other one notice. Called by `migration`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.migration.answers import Answer
from benchmarks.migration.front import INSTANCES, Front

STREAMS = 4  # of each instance
PROMPT_TOKENS, MOST_TOKENS = 32, 4000
WINDOW_S = 1.0  # before and after an instance is killed
MORE_TOKENS = 8  # that each stream gets when the instance is back


def losses(front: Front, num_rounds: int, end: Callable[[Answer], None]) -> Iterator[dict[str, Any]]:
    """Yields a row for each instance that is killed. `end`: ends a request, which is checked later."""
    front.set_background(0)
    for number in tqdm(range(num_rounds), desc="instances killed"):
        killed = number % len(INSTANCES)
        streams = {
            instance: [front.ask(front.prompt(PROMPT_TOKENS), MOST_TOKENS, instance) for _ in range(STREAMS)]
            for instance in INSTANCES
        }
        of_dead, others = streams[killed], streams[1 - killed]
        _grow(front, [*of_dead, *others])
        began_s = _wait(front, WINDOW_S)
        killed_s = time.monotonic()
        front.kill(killed)
        _wait(front, WINDOW_S)
        front.until_back()
        back_s = time.monotonic()
        _grow(front, [*of_dead, *others])
        yield {
            "step_ms": _ms(np.median(_gaps_s(others, began_s, killed_s))),
            "longest_before_ms": _ms(_gaps_s(others, began_s, killed_s).max()),
            "longest_after_ms": _ms(_gaps_s(others, killed_s, killed_s + WINDOW_S).max()),
            "longest_until_back_ms": _ms(_gaps_s(others, killed_s, back_s).max()),
            "back_s": round(back_s - killed_s, 1),
            "streams": STREAMS,
        }
        for answer in (*of_dead, *others):
            end(answer)


def _grow(front: Front, answers: list[Answer]) -> None:
    """Until each has some tokens more, or has ended."""
    wanted = [len(each.times_s) + MORE_TOKENS for each in answers]
    front.until(lambda: all(map(_has, answers, wanted)))


def _has(answer: Answer, num_tokens: int) -> bool:
    return len(answer.times_s) >= num_tokens or answer.has_ended()


def _wait(front: Front, seconds: float) -> float:
    """When it began."""
    began_s = time.monotonic()
    front.until(lambda: time.monotonic() >= began_s + seconds)
    return began_s


def _gaps_s(answers: list[Answer], first_s: float, last_s: float) -> np.ndarray[Any, Any]:
    """The gaps between tokens that end in this time."""
    gaps_s = [each.gaps_s[_within(each, first_s, last_s)] for each in answers]
    return np.concatenate(gaps_s)


def _within(answer: Answer, first_s: float, last_s: float) -> np.ndarray[Any, Any]:
    ends_s = np.array(answer.times_s[1:])
    return (ends_s >= first_s) & (ends_s <= last_s)


def _ms(seconds: Any) -> float:
    return round(float(seconds) * 1e3, 1)
