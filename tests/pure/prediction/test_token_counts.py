"""What a prompt says before it is computed: buckets of its tokens, and numbers from these."""

from __future__ import annotations

import numpy as np

from python_backends.prediction.token_counts import (
    MOST_TOKENS,
    WIDTH,
    buckets_of,
    kept,
    numbers_of,
    of_kept,
)


def prompt(*ids: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(ids, np.int32)


def test_the_same_tokens_in_any_order_are_the_same_numbers() -> None:
    numbers = numbers_of(buckets_of(prompt(5, 900, 5, 31)), 4)
    assert numbers.tolist() == numbers_of(buckets_of(prompt(31, 5, 5, 900)), 4).tolist()
    assert numbers.shape == (WIDTH,)
    counts = sorted(np.expm1(numbers[:-1])[numbers[:-1] > 0].round(5).tolist())
    assert counts == [1, 1, 2]
    assert numbers[-1] == np.float32(np.log(4))


def test_tokens_spread_over_the_buckets() -> None:
    buckets = np.concatenate(
        [buckets_of(np.arange(at, at + 200, dtype=np.int32)) for at in range(0, 50_000, 200)]
    )
    counts = np.bincount(buckets, minlength=WIDTH)
    assert counts[-1] == 0, "that is the length's place"
    assert counts[:-1].min() > 20
    assert counts.max() < 100


def test_of_a_long_prompt_its_beginning_and_its_end_are_read() -> None:
    half = MOST_TOKENS // 2
    ends = prompt(*range(half)), prompt(*range(1000, 1000 + half))
    long = np.concatenate([ends[0], prompt(*range(5000, 5100)), ends[1]])
    assert buckets_of(long).tolist() == buckets_of(np.concatenate(ends)).tolist()


def test_an_adapter_is_one_bucket_more() -> None:
    plain, tuned = buckets_of(prompt(5, 900, 31)), buckets_of(prompt(5, 900, 31), "0a1b")
    assert len(tuned) == 4
    assert set(plain.tolist()) < set(tuned.tolist())
    assert tuned.tolist() == sorted(tuned.tolist())
    assert tuned.dtype == plain.dtype


def test_what_the_log_keeps_becomes_the_same_numbers() -> None:
    for each in (prompt(1, 2, 3), prompt(*range(300))):
        buckets = buckets_of(each)
        again = of_kept(kept(buckets), len(each))
        assert again.tolist() == numbers_of(buckets, len(each)).tolist()
