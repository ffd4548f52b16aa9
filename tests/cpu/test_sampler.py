"""Drawn tokens follow the model's probabilities, stay inside top_k and
top_p, and depend on (seed, output index) alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from python_backends.engine.slots import sampler
from python_backends.engine.slots.allowed import Allowed, added, unpacked
from python_backends.engine.slots.noise import BLOCK, Noise, drawn, keys
from python_backends.engine.slots.numbers import fail_others
from python_backends.engine.slots.sampler import (
    CANDIDATES,
    Draws,
    Restrictions,
    SamplingRows,
    restricted,
    sample,
)
from python_backends.nouns.request import Finish, Request
from tests.support.tiny_models import Serving, TinyModel, random_requests

MASK = (1 << 64) - 1


def _restrictions(rows: int, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Restrictions:
    return Restrictions(torch.full((rows,), top_k), torch.full((rows,), top_p), torch.full((rows,), min_p))


def _draws(
    rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Draws:
    restrictions = _restrictions(rows, top_k, top_p, min_p) if top_k or top_p < 1 or min_p else None
    numbers = torch.arange(rows)
    return Draws(numbers, torch.full((rows,), temperature), numbers * 7919, numbers % 13, restrictions)


def _logits(rows: int, vocabulary: int, wide: float = 2.0) -> Tensor:
    return torch.randn((rows, vocabulary), generator=torch.Generator().manual_seed(5)) * wide


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.7, 9, 1.0), (1.0, 0, 0.8), (1.3, 20, 0.7)],
)
def test_frequencies_are_the_probabilities(temperature: float, top_k: int, top_p: float) -> None:
    """A chi-square test over 40,000 seeds, which are fixed; its bound is five standard deviations."""
    rows, logits = 40_000, _logits(1, 50)
    draws = _draws(rows, temperature, top_k, top_p)
    counts = sample(logits.expand(rows, -1), SamplingRows(draws)).bincount(minlength=50).double()
    expected = torch.from_numpy(_plain(logits[0], temperature, top_k, top_p)) * rows
    assert (counts[expected == 0] == 0).all()
    kept = expected >= 5
    chi_square = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
    freedom = int(kept.sum()) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("wide", [0.01, 1.0, 6.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"),
    [(1, 1.0), (40, 1.0), (700, 1.0), (0, 0.0), (0, 0.3), (0, 0.99), (50, 0.9), (1999, 0.999)],
)
def test_support_is_that_of_a_plain_reference(wide: float, top_k: int, top_p: float) -> None:
    """Flat and steep rows, so that each number of candidates tried is the one that is enough somewhere."""
    assert max(CANDIDATES) < 2000
    logits = _logits(4, 2000, wide)
    scores = restricted(logits, _restrictions(4, top_k, top_p))
    for row in range(4):
        assert np.array_equal(scores[row].numpy() > -np.inf, _plain(logits[row], 1.0, top_k, top_p) > 0)


def test_a_flat_row_makes_no_row_beside_it_look_at_more_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that need the first, the second and the last number of candidates, in no order."""
    logits = _logits(5, 2000) * torch.tensor([6.0, 1.2, 6.0, 0.001, 6.0])[:, None]
    limits, looked, least_among = _restrictions(5, top_p=0.9), list[tuple[int, int]](), sampler._least_among

    def counting(probs: Tensor, size: int, limits: Restrictions) -> tuple[Tensor, Tensor]:
        looked.append((len(probs), size))
        return least_among(probs, size, limits)

    monkeypatch.setattr(sampler, "_least_among", counting)
    together = restricted(logits, limits)
    assert looked == [(5, 64), (2, 1024), (1, 2000)]
    monkeypatch.setattr(sampler, "CANDIDATES", ())
    assert torch.equal(together, restricted(logits, limits))


def test_rows_without_restrictions_are_left_alone_beside_rows_with_them() -> None:
    scores = _logits(3, 100)
    out = restricted(
        scores, Restrictions(torch.tensor([0, 5, 0]), torch.tensor([1.0, 1.0, 0.5]), torch.zeros(3))
    )
    assert torch.equal(out[0], scores[0])
    assert [int((row > -torch.inf).sum()) for row in out[1:]] == [
        5,
        int((_plain(_logits(3, 100)[2], 1.0, 0, 0.5) > 0).sum()),
    ]


def test_equal_probabilities_at_the_edge_stay_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    for limits in (_restrictions(1, top_k=2), _restrictions(1, top_p=0.6)):
        assert (restricted(logits, limits)[0] > -torch.inf).tolist() == [True, True, True, True, False]


def test_greedy_takes_the_lowest_id_among_equals_also_beside_rows_that_draw() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [0.0, 3.0, 3.0, 1.0]])
    assert sample(logits, SamplingRows()).tolist() == [1, 1]
    second = replace(_draws(1), rows=torch.tensor([1]))
    assert sample(logits, SamplingRows(second))[0] == 1


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-38, 1.18e-38, 5e-38, 1e-30, 1e-6])
def test_a_temperature_too_small_to_divide_by_is_greedy_also_beside_rows_that_draw(
    one: TinyModel, temperature: float
) -> None:
    greedy, drawing = random_requests(2, seed=3), random_requests(2, seed=4, temperature=2.0, top_p=0.9)
    wanted = Serving(one.engine()).run(greedy)
    small = [
        each.changed(sampling=each.sampling.changed(temperature=temperature, top_k=9)) for each in greedy
    ]
    answers = Serving(one.engine()).run(
        [*small, *(each.changed(request_id=10 + number) for number, each in enumerate(drawing))]
    )
    assert {number: answers[number] for number in wanted} == wanted


def test_banned_ids_are_never_taken() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0], [0.0, 3.0, 2.0]])
    assert sample(logits, SamplingRows(banned=torch.tensor([[1, -1], [-1, -1]]))).tolist() == [2, 1]


def test_noise_is_that_of_plain_integers_and_logarithms() -> None:
    seeds, indices = [0, 1, -5, 2**63 - 1], [0, 1, 77, 2**31]
    row_keys = keys(np.array(seeds), np.array(indices))
    got = _noise_of_all(row_keys, 192).tolist()
    for row, (seed, index) in enumerate(zip(seeds, indices, strict=True)):
        assert got[row] == pytest.approx(
            [_plain_noise(seed, index, token) for token in range(192)], rel=1e-12
        )


def test_noise_of_neighbouring_seeds_indices_and_tokens_is_gumbel_and_unrelated() -> None:
    seeds, indices = np.arange(40).repeat(40), np.tile(np.arange(40), 40)
    noise = _noise_of_all(keys(seeds, indices), 64)
    flat = np.exp(-np.exp(-noise))  # uniform if the noise has Gumbel's distribution
    expected = noise.size / 100
    counts = np.histogram(flat, 100, (0, 1))[0]
    assert float(((counts - expected) ** 2 / expected).sum()) < 99 + 5 * 198**0.5
    cube = flat.reshape(40, 40, 64)
    for axis in range(3):
        one, other = np.delete(cube, 0, axis), np.delete(cube, -1, axis)
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 / one.size**0.5


@pytest.mark.parametrize("wide", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("vocabulary", [3, 64, 2000])
def test_the_token_with_the_greatest_sum_of_score_and_noise_is_drawn(wide: float, vocabulary: int) -> None:
    """Few tokens are looked at, and no other could have won."""
    scores, row_keys = _logits(300, vocabulary, wide).numpy(), keys(np.arange(300), np.arange(300))
    noise = _noise_of_all(row_keys, -(-vocabulary // BLOCK) * BLOCK)[:, :vocabulary]
    assert np.array_equal(drawn(scores, scores.argmax(-1), row_keys), (scores + noise).argmax(-1))


def test_improbable_tokens_are_drawn_as_often_as_they_should() -> None:
    """400 tokens share 2 % of the probability with each other, as the tail of a vocabulary does."""
    rows = 40_000
    scores = np.full((1, 401), np.log(0.02 / 400), np.float32)
    scores[0, 7] = np.log(0.98)
    tokens = _drawn_of_one(scores, keys(np.arange(rows), np.zeros(rows, np.int64)))
    tail = tokens[tokens != 7]
    assert abs(len(tail) - 0.02 * rows) < 5 * (0.02 * rows) ** 0.5
    counts = np.delete(np.bincount(tail, minlength=401), 7)
    expected = len(tail) / 400
    assert float(((counts - expected) ** 2 / expected).sum()) < 400 + 5 * 800**0.5


def test_rounding_of_logits_changes_hardly_a_token() -> None:
    """One number over the cumulated probabilities changes some thirty of these 20,000 tokens."""
    rows, logits = 20_000, _logits(1, 5000, 2.5).numpy()
    other = logits + np.random.default_rng(1).uniform(-7e-5, 7e-5, logits.shape).astype(np.float32)
    row_keys = keys(np.arange(rows), np.arange(rows))
    tokens = [
        np.concatenate([_drawn_of_one(each, part) for part in np.split(row_keys, 20)])
        for each in (logits, other)
    ]
    assert int((tokens[0] != tokens[1]).sum()) <= 3


def test_a_row_that_is_not_of_numbers_changes_no_other() -> None:
    scores, row_keys = _logits(4, 100).numpy(), keys(np.arange(4), np.arange(4))
    wanted = drawn(scores, scores.argmax(-1), row_keys)
    for bad in (float("nan"), float("inf"), float("-inf")):
        scores[2] = bad
        tokens = drawn(scores, scores.argmax(-1), row_keys)
        assert tokens[[0, 1, 3]].tolist() == wanted[[0, 1, 3]].tolist()
        assert 0 <= int(tokens[2]) < 100


@pytest.mark.parametrize("name", ["llama_grouped", "gemma2", "qwen3_moe"])
def test_the_same_seed_gives_the_same_text_in_any_batch(tiny: Callable[[str], TinyModel], name: str) -> None:
    model, requests = tiny(name), _drawing_requests()
    alone = Serving(model.engine(slots=1)).run(requests)
    assert Serving(model.engine(slots=5), token_budget=7).run(requests) == alone
    assert Serving(model.engine(slots=3), ahead=1).run(requests[::-1]) == alone


def test_the_same_seed_gives_the_same_text_after_a_restart(one: TinyModel) -> None:
    """The output index counts on, so token i is drawn with the number of (seed, i) again."""
    requests = _drawing_requests()
    whole = Serving(one.engine()).run(requests)
    serving = Serving(one.engine())
    for request in requests:
        serving.submit(request, whole[request.request_id][:9])
    assert serving.run() == whole


def test_other_seeds_give_other_texts(one: TinyModel) -> None:
    request = _drawing_requests()[0]
    seeds = (0, 1, 2, 2**64 - 1, 10**30)
    others = [Request(i, request.prompt, request.sampling.changed(seed=seed)) for i, seed in enumerate(seeds)]
    answers = Serving(one.engine()).run(others)
    assert len({tuple(answer) for answer in answers.values()}) == len(others)


def _drawing_requests() -> list[Request]:
    """A mixed batch: plain draws, greedy, and everything else that may be asked for."""
    kinds: list[dict[str, Any]] = [
        *({}, {"top_k": 20}, {"top_p": 0.8}, {"top_k": 100, "top_p": 0.9}, {"temperature": 0.0}),
        *(
            {"min_p": 0.05},
            {"repetition_penalty": 1.5},
            {"presence_penalty": 1.0, "frequency_penalty": 0.5, "top_k": 50},
        ),
        *(
            {"bad_words": tuple((token,) for token in range(0, 512, 3))},
            {"log_probs": True, "num_top_log_probs": 3},
        ),
    ]
    requests = random_requests(len(kinds), seed=9, temperature=2.0)
    return [
        request.changed(sampling=request.sampling.changed(seed=100 + index, **kinds[index]))
        for index, request in enumerate(requests)
    ]


def _plain(logits: Tensor, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Probabilities [vocabulary] by sorting one row; equals are kept
    together. The float32 of top_p is what counts.
    """
    probs = torch.softmax(logits / temperature, -1).double().numpy()
    if top_k:
        probs = np.where(probs >= np.sort(probs)[::-1][top_k - 1], probs, 0.0)
    if top_p < 1:
        ordered = np.sort(probs)[::-1]
        needed = int(np.searchsorted(np.cumsum(ordered), np.float32(top_p) * probs.sum()))
        probs = np.where(probs >= ordered[needed], probs, 0.0)
    return probs / probs.sum()


def _drawn_of_one(logits: np.ndarray, row_keys: np.ndarray) -> np.ndarray:
    """[n], each for the same `logits` [1, vocabulary]."""
    num = len(row_keys)
    return drawn(logits.repeat(num, 0), logits.argmax(-1).repeat(num), row_keys)


def _noise_of_all(row_keys: np.ndarray, width: int) -> np.ndarray:
    """[rows, width]"""
    num = len(row_keys)
    rows, ids = np.arange(num).repeat(width), np.tile(np.arange(width), num)
    return Noise(row_keys, width).of(rows, ids).reshape(num, width)


def _plain_noise(seed: int, index: int, token: int) -> float:
    golden = 0x9E3779B97F4A7C15

    def mix(bits: int) -> int:
        bits = (bits + golden) & MASK
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
        return bits ^ (bits >> 31)

    def time_s(bits: int) -> float:
        return -math.log(((bits >> 16) + 0.5) / 2**48)

    key = mix(mix(seed & MASK) + index * golden & MASK)
    block = mix((key - golden * (1 + token // 64)) & MASK)
    later_s = 0.0 if block % 64 == token % 64 else time_s(mix((key + golden * (1 + token)) & MASK))
    return -math.log(time_s(block) / 64 + later_s)


def masked(rows: list[int], may: list[list[int]], vocabulary: int) -> Allowed:
    bits = np.zeros((len(may), -(-vocabulary // 32) * 32), np.uint8)
    for row, tokens in zip(bits, may, strict=True):
        row[tokens] = 1
    masks = np.packbits(bits, axis=1, bitorder="little")
    return Allowed(torch.tensor(rows), torch.from_numpy(masks))


@pytest.mark.parametrize("vocabulary", [32, 50, 65])
def test_masks_are_unpacked_alike_on_every_device(vocabulary: int) -> None:
    masks = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 12), dtype=np.uint8))
    found = unpacked(masks, vocabulary)
    assert found.shape == (3, vocabulary)
    assert torch.equal(added(masks, vocabulary), torch.zeros(found.shape).masked_fill(~found, float("-inf")))


def test_only_tokens_in_a_rows_mask_come_and_other_rows_keep_theirs() -> None:
    logits = torch.randn((4, 50), generator=torch.Generator().manual_seed(0))
    rows = SamplingRows(allowed=masked([1, 3], [[7], [40, 49]], 50))
    tokens = sample(logits, rows)
    assert tokens[[0, 2]].tolist() == logits[[0, 2]].argmax(-1).tolist()
    assert tokens[1] == 7
    assert tokens[3] == (40 if logits[3, 40] > logits[3, 49] else 49)
    every = SamplingRows(allowed=masked([0, 1, 2, 3], [[1], [2], [3], [4]], 50))
    assert sample(logits, every).tolist() == [1, 2, 3, 4]


def test_a_row_of_which_no_token_is_allowed_fails_alone() -> None:
    logits = torch.randn((3, 50), generator=torch.Generator().manual_seed(1))
    rows = SamplingRows(allowed=masked([0, 1], [[], [5]], 50))
    tokens = sample(logits, rows)
    finishes = fail_others(torch.stack([tokens, torch.zeros_like(tokens)]), logits, tokens, rows)[1]
    assert finishes.tolist() == [Finish.ERROR, Finish.RUNNING, Finish.RUNNING]
