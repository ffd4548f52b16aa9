"""What is predicted of open streams: lengths, places, and how soon the queue is drained."""

from __future__ import annotations

import numpy as np
import pytest

from python_backends.nouns.request import LengthPrediction, Request, Sampling
from python_backends.streams.forecast import ANY_LENGTH, Forecast
from python_backends.streams.stream import Stream

STEP_S = 0.5


def stream(number: int, predicted: float = 0.0, num_tokens: int = 0, seated: bool = False) -> Stream:
    request = Request(number, np.arange(3, dtype=np.int32), Sampling(max_tokens=1000, min_tokens=2))
    made = Stream(request, None, 4, 0)
    made.seated = seated
    made.tokens = [1] * num_tokens
    if predicted:
        made.prediction = LengthPrediction(predicted, np.full(6, predicted, np.float32))
    return made


@pytest.mark.parametrize(
    ("given", "mean", "expected"),
    [
        (stream(1, 40), 7.0, 40),
        (stream(1), 7.0, 7),
        (stream(1), 0.0, ANY_LENGTH),
        (stream(1, 40, num_tokens=60), 7.0, 61),
        (stream(1, 0.5), 7.0, 2),
        (stream(1, 4000), 7.0, 1000),
    ],
)
def test_a_length_is_the_prediction_or_the_mean_within_what_can_be(
    given: Stream, mean: float, expected: float
) -> None:
    assert Forecast([given], 2, STEP_S, mean).length(given) == expected


def test_places_are_those_of_arrival_among_those_that_wait() -> None:
    streams = [stream(1, seated=True), stream(2), stream(3, seated=True), stream(4)]
    assert Forecast(streams, 2, STEP_S).places() == {2: 1, 4: 2}


@pytest.mark.parametrize(
    ("streams", "expected"),
    [
        ([], 0.0),
        ([stream(1, 10, 4, seated=True), stream(2, 8, 4, seated=True)], 4 * STEP_S),  # the first that ends
        ([stream(1, 10)], 0.0),  # a slot is free
        # slots are free after 6 and 4 steps; the first that waits takes the second, the other the first
        (
            [stream(1, 10, 4, seated=True), stream(2, 8, 4, seated=True), stream(3, 20), stream(4, 5)],
            6 * STEP_S,
        ),
        ([stream(n, 10) for n in range(5)], 20 * STEP_S),
    ],
)
def test_the_queue_waits_until_the_last_that_waits_gets_its_slot(
    streams: list[Stream], expected: float
) -> None:
    assert Forecast(streams, 2, STEP_S).queue_wait_s() == expected
