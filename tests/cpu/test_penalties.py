"""Penalties, bad words, biases and min_p are those of transformers' processors, or of
a plain reference; nobody pays who didn't ask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as reference

from python_backends.engine.slots.biases import biased
from python_backends.engine.slots.penalties import Penalties, penalized
from python_backends.engine.slots.sampler import Restrictions, restricted, sample
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch import step_launcher
from python_backends.nouns.request import Ids, ModelLimits, Request, Sampling
from python_backends.nouns.step import Admit, Release, StepPlan
from tests.support.tiny_models import Serving, TinyModel, logits_along, random_requests

VOCABULARY = 50
LIMITS = ModelLimits(max_model_tokens=40, vocab_size=VOCABULARY, num_slots=4, num_blocks=40, block_tokens=4)
CPU = torch.device("cpu")
PENALIZED: dict[str, Any] = {"repetition_penalty": 1.7, "presence_penalty": -0.6, "frequency_penalty": 0.4}


def _logits(rows: int, seed: int = 3) -> Tensor:
    return torch.randn((rows, VOCABULARY), generator=torch.Generator().manual_seed(seed)) * 4


def _random_tokens(seed: int, count: int) -> Ids:
    """Few different ones, so that many come again."""
    return np.random.default_rng(seed).integers(0, 12, count).astype(np.int32)


def _admit(slot: int, prompt: Ids, output: Ids, **sampling: Any) -> Admit:
    chosen = Sampling(**{"max_tokens": 30} | sampling)
    blocks = np.arange(10 * slot, 10 * slot + 10, dtype=np.int32)
    return Admit(slot, 1, chosen, len(prompt), len(output), blocks, np.concatenate([prompt, output]))


def _plan(slots: list[int], lengths: list[int]) -> StepPlan:
    """A step that decodes `slots`, which hold `lengths` tokens."""
    count = len(slots)
    return StepPlan(
        number=0,
        operations=(),
        slots=np.array(slots, np.int32),
        slot_generations=np.ones(count, np.int32),
        first_starts=np.array(lengths, np.int32) - 1,
        lengths=np.ones(count, np.int32),
        num_decodes=count,
        samples=np.ones(count, np.bool_),
        tokens=np.zeros(0, np.int32),
    )


def _plain(logits: Tensor, prompt: Ids, output: Ids, sampling: Sampling) -> Tensor:
    """One row [vocabulary], token by token."""
    logits = logits.clone()
    for token in {*prompt.tolist(), *output.tolist()}:
        logits[token] *= 1 / sampling.repetition_penalty if logits[token] > 0 else sampling.repetition_penalty
    for token in output.tolist():
        logits[token] -= sampling.frequency_penalty
    for token in {*output.tolist()}:
        logits[token] -= sampling.presence_penalty
    return logits


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 16.0])
def test_the_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    tokens = torch.from_numpy(np.stack([_random_tokens(seed, 20) for seed in range(3)])).long()
    nothing = torch.zeros(3)
    ours = Penalties(
        torch.arange(3),
        tokens,
        torch.zeros_like(tokens, dtype=torch.bool),
        torch.full((3,), penalty),
        nothing,
        nothing,
    )
    theirs = reference.RepetitionPenaltyLogitsProcessor(penalty)(tokens, _logits(3))
    torch.testing.assert_close(penalized(_logits(3), [ours]), theirs)


@pytest.mark.parametrize(
    "sampling",
    [PENALIZED, {"presence_penalty": 2.0}, {"frequency_penalty": -2.0}, {"repetition_penalty": 0.7}],
)
def test_all_penalties_are_those_of_a_plain_reference_for_rows_of_any_length(
    sampling: dict[str, Any],
) -> None:
    """Slots of different lengths, one that asks for nothing between
    them, in an order that is not the slots'.
    """
    parts = {
        slot: (_random_tokens(slot, 3 + 4 * slot), _random_tokens(9 + slot, slot * 3)) for slot in range(4)
    }
    state = SlotState(LIMITS, CPU)
    state.apply([_admit(slot, *tokens, **(sampling if slot != 2 else {})) for slot, tokens in parts.items()])
    order = [3, 2, 0, 1]
    lengths = [len(parts[slot][0]) + len(parts[slot][1]) for slot in order]
    rows = state.sampling_rows(torch.tensor(order), _plan(order, lengths))
    assert rows.penalties
    out = penalized(_logits(4), rows.penalties)
    for row, slot in enumerate(order):
        chosen = Sampling(max_tokens=1, **(sampling if slot != 2 else {}))
        torch.testing.assert_close(out[row], _plain(_logits(4)[row], *parts[slot], chosen))


def test_one_long_row_makes_no_work_for_the_short_ones() -> None:
    limits = ModelLimits(
        max_model_tokens=4096, vocab_size=VOCABULARY, num_slots=4, num_blocks=1100, block_tokens=4
    )
    parts = [(_random_tokens(slot, length), _random_tokens(9, 2)) for slot, length in enumerate([4000, 3, 5])]
    state = SlotState(limits, CPU)
    state.apply([_admit(slot, *tokens, **PENALIZED) for slot, tokens in enumerate(parts)])
    rows = state.sampling_rows(torch.arange(3), _plan([0, 1, 2], [4002, 5, 7]))
    assert sorted(tuple(group.tokens.shape) for group in rows.penalties) == [(1, 4002), (2, 7)]
    out = penalized(_logits(3), rows.penalties)
    for slot, tokens in enumerate(parts):
        torch.testing.assert_close(out[slot], _plain(_logits(3)[slot], *tokens, Sampling(1, **PENALIZED)))


def test_penalties_follow_the_tokens_that_are_appended() -> None:
    """Also beside a row whose end has not been read yet, and for a new tenant of its slot."""
    prompt, output = _random_tokens(1, 5), np.zeros(0, np.int32)
    state = SlotState(LIMITS, CPU)
    state.apply(
        [_admit(0, prompt, output, **PENALIZED), _admit(1, prompt, output, **PENALIZED, stop_ids=(7,))]
    )
    slots = torch.tensor([0, 1])
    for index, token in enumerate([7, 9, 7, 30]):
        state.append(slots, torch.tensor([token, token]))
        output = np.append(output, np.int32(token))
        rows = state.sampling_rows(slots, _plan([0, 1], [6 + index] * 2))
        assert rows.penalties
        out = penalized(_logits(2), rows.penalties)
        torch.testing.assert_close(out[0], _plain(_logits(2)[0], prompt, output, Sampling(1, **PENALIZED)))
        torch.testing.assert_close(
            out[1], _plain(_logits(2)[1], prompt, output[:1], Sampling(1, **PENALIZED))
        )
    state.apply([Release(1, 1), _admit(1, prompt[:2], output[:0], **PENALIZED)])
    rows = state.sampling_rows(slots[1:], _plan([1], [2]))
    assert rows.penalties
    torch.testing.assert_close(
        penalized(_logits(1), rows.penalties)[0],
        _plain(_logits(1)[0], prompt[:2], output[:0], Sampling(1, **PENALIZED)),
    )


BAD_WORDS = ((5,), (1, 2), (3, 4, 6), (2, 2, 2, 8), (9, 1, 2, 3), (1, 7))


@pytest.mark.parametrize(
    "tokens",
    [
        (1,),
        (2,),
        (3, 4),
        (4, 3, 4),
        (2, 2, 2),
        (2, 2),
        (0, 2, 2, 2),
        (9, 1, 2),
        (9, 1),
        (1, 2),
        (3, 9, 4),
        (9, 9, 1, 2),
    ],
)
def test_bad_words_are_those_of_transformers(tokens: tuple[int, ...]) -> None:
    """Beside a row without any, and one with fewer."""
    ids = np.array(tokens, np.int32)
    state = SlotState(LIMITS, CPU)
    words = {0: BAD_WORDS, 1: (), 2: BAD_WORDS[:2]}
    state.apply([_admit(slot, ids[:1], ids[1:], bad_words=each) for slot, each in words.items()])
    order = [2, 1, 0]
    rows = state.sampling_rows(torch.tensor(order), _plan(order, [len(ids)] * 3))
    assert rows.banned is not None
    for row, slot in enumerate(order):
        theirs = _logits(1)
        if words[slot]:
            processor = reference.NoBadWordsLogitsProcessor([list(word) for word in words[slot]])
            theirs = processor(torch.tensor([tokens]), theirs)
        banned = set(rows.banned[row].tolist()) - {-1}
        assert banned == set(torch.isinf(theirs[0]).nonzero()[:, 0].tolist())


def test_a_bad_word_with_a_token_that_the_model_does_not_have_harms_nobody() -> None:
    state = SlotState(LIMITS, CPU)
    prompt = _random_tokens(1, 5)
    state.apply([_admit(0, prompt, prompt[:0], bad_words=((VOCABULARY,), (VOCABULARY + 7, 3), (40,)))])
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 40] = 9.0
    assert sample(logits, state.sampling_rows(torch.tensor([0]), _plan([0], [5]))).tolist() == [0]


def test_logits_that_are_not_numbers_give_some_token_of_the_vocabulary() -> None:
    state = SlotState(LIMITS, CPU)
    prompt = _random_tokens(1, 5)
    state.apply(
        [
            _admit(0, prompt, prompt[:0], temperature=1.0),
            _admit(1, prompt, prompt[:0], temperature=1.0, top_k=3, min_p=0.1),
        ]
    )
    rows = state.sampling_rows(torch.tensor([0, 1]), _plan([0, 1], [5, 5]))
    assert all(
        0 <= token < VOCABULARY for token in sample(torch.full((2, VOCABULARY), float("nan")), rows).tolist()
    )


def test_stop_ids_before_min_tokens_and_bad_words_are_banned_together() -> None:
    state = SlotState(LIMITS, CPU)
    prompt = _random_tokens(1, 5)
    state.apply([_admit(0, prompt, prompt[:0], bad_words=((40,),), stop_ids=(41, 42), min_tokens=2)])
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 40:43] = 9.0
    logits[0, 3] = 1.0
    for length, expected in ((5, 3), (6, 3), (7, 41)):
        token = sample(logits, state.sampling_rows(torch.tensor([0]), _plan([0], [length])))
        assert token.tolist() == [expected]
        state.append(torch.tensor([0]), token)


BIASES = ((3, 2.5), (7, -100.0), (49, 0.25))


def test_biases_are_those_of_a_plain_reference_and_come_before_penalties() -> None:
    """Beside a row without any, one with fewer, and for a new tenant of a slot."""
    prompt = _random_tokens(1, 8)
    state = SlotState(LIMITS, CPU)
    asked: dict[int, dict[str, Any]] = {
        0: {"logit_bias": BIASES, "repetition_penalty": 1.5},
        1: {},
        2: {"logit_bias": BIASES[:1]},
    }
    state.apply([_admit(slot, prompt, prompt[:0], **each) for slot, each in asked.items()])
    order = [2, 0, 1]
    rows = state.sampling_rows(torch.tensor(order), _plan(order, [len(prompt)] * 3))
    assert rows.biases is not None
    assert rows.penalties
    out = penalized(biased(_logits(3), rows.biases), rows.penalties)
    for row, slot in enumerate(order):
        expected = _logits(3)[row]
        for token, value in asked[slot].get("logit_bias", ()):
            expected[token] += value
        sampling = Sampling(1, repetition_penalty=asked[slot].get("repetition_penalty", 1.0))
        torch.testing.assert_close(out[row], _plain(expected, prompt, prompt[:0], sampling))
    state.apply([Release(0, 1), _admit(0, prompt, prompt[:0])])
    assert state.sampling_rows(torch.tensor([0]), _plan([0], [len(prompt)])).biases is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_decides_for_greedy_rows_and_for_those_that_draw(temperature: float) -> None:
    state = SlotState(LIMITS, CPU)
    prompt = _random_tokens(1, 5)
    state.apply([_admit(0, prompt, prompt[:0], temperature=temperature, logit_bias=((41, 100.0),))])
    assert sample(_logits(1), state.sampling_rows(torch.tensor([0]), _plan([0], [5]))).tolist() == [41]
    assert state.choice(np.array([0])) is None


def test_a_bias_of_a_token_that_the_model_does_not_have_harms_nobody() -> None:
    state = SlotState(LIMITS, CPU)
    prompt = _random_tokens(1, 5)
    state.apply([_admit(0, prompt, prompt[:0], logit_bias=((VOCABULARY, 100.0), (4, 9.0)))])
    rows = state.sampling_rows(torch.tensor([0]), _plan([0], [5]))
    assert sample(torch.zeros(1, VOCABULARY), rows).tolist() == [4]


@pytest.mark.parametrize("wide", [0.3, 3.0])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 1.0, 0.1), (0, 1.0, 1.0), (5, 1.0, 0.02), (0, 0.7, 0.05), (20, 0.9, 0.3)],
)
def test_top_k_top_p_and_min_p_keep_what_transformers_keeps(
    wide: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = _logits(20, seed=8) * wide / 4
    limits = Restrictions(torch.full((20,), top_k), torch.full((20,), top_p), torch.full((20,), min_p))
    ours = restricted(logits, limits) > -torch.inf
    theirs = logits
    nothing = torch.zeros((20, 0), dtype=torch.long)
    if top_k:
        theirs = reference.TopKLogitsWarper(top_k)(nothing, theirs)
    if top_p < 1:
        theirs = reference.TopPLogitsWarper(top_p)(nothing, theirs)
    theirs = reference.MinPLogitsWarper(min_p)(nothing, theirs)
    assert torch.equal(ours, torch.isfinite(theirs))


def test_a_batch_in_which_nobody_asks_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No history is written, no parameter is gathered: the step is one arg-max."""
    state = SlotState(LIMITS, CPU)
    prompt = _random_tokens(1, 5)
    state.apply([_admit(0, prompt, prompt[:0]), _admit(1, prompt, prompt[:0])])
    rows = state.sampling_rows(torch.tensor([0, 1]), _plan([0, 1], [5, 5]))
    assert (rows.draws, rows.banned, rows.asks, rows.biases) == (None,) * 4
    assert not rows.penalties
    state.append(torch.tensor([0, 1]), torch.tensor([3, 4]))
    assert not state._sampling.history._tokens.any()


def test_a_steady_step_sends_nothing_to_the_device(one: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """But which blocks it begins, where no kernels run, and penalized rows that have passed 256, 512 …
    tokens.
    """
    everything = {
        **PENALIZED,
        "bad_words": ((5,), (1, 2)),
        "logit_bias": ((9, 1.0), (11, -2.0)),
        "log_probs": True,
        "num_top_log_probs": 2,
        "temperature": 1.0,
        "min_p": 0.01,
    }
    requests = [
        request.changed(sampling=request.sampling.changed(max_tokens=40, **(everything if index % 2 else {})))
        for index, request in enumerate(random_requests(4))
    ]
    serving = Serving(one.engine(slots=4), token_budget=256)
    for request in requests:
        serving.submit(request)
    for _ in range(4):
        serving.step()

    def refuse(*_: Any) -> Tensor:
        raise AssertionError("something is sent to the device")

    monkeypatch.setattr(step_launcher, "to_device", lambda values, _: torch.as_tensor(values))
    monkeypatch.setattr(torch, "from_numpy", refuse)
    monkeypatch.setattr(torch, "tensor", refuse)
    for _ in range(10):
        serving.step()
    monkeypatch.undo()
    assert all(len(answer) == 40 for answer in serving.run().values())


# --- through the scheduler and the engine


def _asking(index: int, request: Request) -> Request:
    kinds: list[dict[str, Any]] = [
        {"repetition_penalty": 1.6},
        {"bad_words": (*((token,) for token in range(0, 512, 2)), (1, 3), (5, 7, 9))},
        {
            "repetition_penalty": 0.8,
            "bad_words": tuple((token, other) for token in range(40) for other in range(10)),
        },
        {"presence_penalty": 2.0, "frequency_penalty": 1.5},
        {"repetition_penalty": 1.2, "presence_penalty": -1.0, "frequency_penalty": -0.3},
        {"logit_bias": tuple((token, float(token % 7 - 3)) for token in range(index, 512, 3))},
    ]
    return request.changed(sampling=request.sampling.changed(**kinds[index % len(kinds)]))


class _PlainPenalties(reference.LogitsProcessor):
    """Presence and frequency, which transformers doesn't have, over the output."""

    def __init__(self, request: Request) -> None:
        self._prompt = request.prompt
        self._sampling = request.sampling.changed(repetition_penalty=1.0)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        output = input_ids[0, len(self._prompt) :].numpy()
        return _plain(scores[0], self._prompt, output, self._sampling)[None]


def _processors(request: Request) -> reference.LogitsProcessorList:
    """Those of transformers' generate, in its order, and ours."""
    sampling, made = request.sampling, reference.LogitsProcessorList()
    if sampling.logit_bias:
        made.append(
            reference.SequenceBiasLogitsProcessor([[[token], bias] for token, bias in sampling.logit_bias])
        )
    if sampling.repetition_penalty != 1:
        made.append(reference.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.bad_words:
        made.append(reference.NoBadWordsLogitsProcessor([list(word) for word in sampling.bad_words]))
    made.append(_PlainPenalties(request))
    return made


def _best(request: Request, answer: list[int], logits: Tensor) -> list[int]:
    """The best token in the place of each of an answer, after those before it."""
    tokens, processors = torch.tensor([[*request.prompt, *answer]]), _processors(request)
    return [
        int(processors(tokens[:, : len(request.prompt) + place], logits[place : place + 1]).argmax())
        for place in range(len(answer))
    ]


def test_greedy_answers_with_all_of_these_are_those_of_transformers(each: TinyModel) -> None:
    requests = [
        _asking(index, request) for index, request in enumerate(random_requests(12, seed=4, max_tokens=24))
    ]
    plain = random_requests(3, seed=5, max_tokens=24)
    plain = [request.changed(request_id=100 + request.request_id) for request in plain]
    answers = Serving(each.engine(slots=5), token_budget=20).run([*requests, *plain])
    changed = 0
    for request in requests:
        answer = answers[request.request_id]
        logits = logits_along(each.model, request.prompt, answer)
        assert answer == _best(request, answer, logits)
        changed += answer != logits.argmax(1).tolist()
    each.check_all(plain, answers)
    assert changed >= 6, "the parameters must show"


def test_penalties_bad_words_and_biases_are_the_same_after_a_restart_and_an_eviction(one: TinyModel) -> None:
    requests = [_asking(index, request) for index, request in enumerate(random_requests(12, seed=6))]
    requests = [
        request.changed(sampling=request.sampling.changed(temperature=1.5, seed=request.request_id))
        for request in requests
    ]
    whole = dict(Serving(one.engine()).run(requests))
    again = Serving(one.engine())
    for request in requests:
        again.submit(request, whole[request.request_id][:11])
    _check_each(again.run(), whole)
    crowded = Serving(one.engine(slots=6, kv_blocks=24), reserve=lambda sequence: len(sequence.tokens) + 1)
    _check_each(crowded.run(requests), whole)
    assert crowded.scheduler.num_evictions > 0


def _check_each(answers: dict[int, list[int]], whole: dict[int, list[int]]) -> None:
    assert [number for number, answer in whole.items() if answers[number] != answer] == []


def test_prefix_blocks_that_are_found_count_as_prompt(one: TinyModel) -> None:
    """Their tokens are in no prefill span; the penalty must see them all the same."""
    request = random_requests(1)[0].changed(prompt=np.arange(100, 150, dtype=np.int32))
    request = request.changed(sampling=request.sampling.changed(repetition_penalty=2.0))
    serving = Serving(one.engine())
    first = list(serving.run([request])[request.request_id])
    assert serving.run([request.changed(request_id=77)])[77] == first
    assert serving.scheduler.blocks.num_retained > 0
