"""The serving-time estimator of static batches and what it learns from."""

from __future__ import annotations

import pytest

from benchmarks.magnus.static_batching.batch_time import BatchShape, BatchTime, teaches


@pytest.mark.parametrize(
    ("estimated_s", "actual_s", "learned"),
    [
        (12.0, 10.0, False),  # 2 s is not more than 2 s
        (12.1, 10.0, True),  # 2.1 s, 21 %
        (7.9, 10.0, True),
        (22.1, 20.0, False),  # 2.1 s, but 10.5 %
        (24.0, 20.0, False),  # 20 % is not more than 20 %
        (24.1, 20.0, True),
        (2.0, 1.0, False),  # 100 %, but 1 s
    ],
)
def test_a_batch_teaches_when_the_estimate_was_off_by_more_than_2_s_and_20_percent(
    estimated_s: float, actual_s: float, learned: bool
) -> None:
    assert teaches(estimated_s, actual_s) is learned


def test_an_estimate_is_that_of_batches_of_nearly_the_same_shape() -> None:
    shapes = [BatchShape(n, 100, g) for n in (1, 2, 4, 8) for g in (10, 100, 200, 400)]
    time = BatchTime(shapes, [shape.max_output_tokens * 0.02 + shape.num_requests * 0.1 for shape in shapes])
    assert time.estimate_s(BatchShape(4, 100, 200)) == pytest.approx(4.4)
    assert 2.0 < time.estimate_s(BatchShape(4, 100, 150)) < 4.5


def test_it_relearns_from_what_it_was_wrong_about_and_from_nothing_else() -> None:
    time = BatchTime([BatchShape(1, 10, 10)], [1.0])
    time.finished(BatchShape(1, 10, 11), time.estimate_s(BatchShape(1, 10, 11)), 1.1)
    assert time.relearn() == 0
    strange = BatchShape(8, 500, 400)
    time.finished(strange, time.estimate_s(strange), 40.0)
    assert time.estimate_s(strange) == pytest.approx(1.0)
    assert time.relearn() == 1
    assert time.estimate_s(strange) == pytest.approx(40.0)
