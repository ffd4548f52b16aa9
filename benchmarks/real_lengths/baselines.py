"""What the state of the model is compared with, and what these cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.real_lengths import texts
from benchmarks.real_lengths.regression import weighed
from benchmarks.real_lengths.scores import Answers, Predictor, Said, kinds_of, same_for_all
from benchmarks.real_lengths.states import States
from benchmarks.real_prompts.prompts import Prompt
from python_backends.nouns.request import Floats, Ids, LengthPrediction
from python_backends.prediction.features import features
from python_backends.prediction.forest import Observations, grow
from python_backends.prediction.history import Answered, AnswerHistory
from python_backends.prediction.request_log import instruction_id
from python_backends.prediction.state_model import KnownStates, learned, learned_by_distance
from python_backends.prediction.token_counts import buckets_of, numbers_of

NEAREST = 24  # answers
TIMED = 200  # requests


def constant(answers: Answers) -> Predictor:
    return lambda seen, asked: same_for_all(
        answers.lengths[seen, 0], answers.ended[seen, 0], int(asked.sum())
    )


def by_kind(answers: Answers, prompts: Sequence[Prompt]) -> Predictor:
    kinds = kinds_of(prompts)

    def predict(seen: np.ndarray, asked: np.ndarray) -> Said:  # type: ignore[type-arg]
        same = (seen & (kinds == kind) for kind in kinds[asked])
        groups = [group if group.any() else seen for group in same]
        return Said.of([weighed(answers.lengths[group, 0], answers.ended[group, 0]) for group in groups])

    return predict


def another_answer(answers: Answers) -> Predictor:
    """The first answer to the same prompt: how much of a length is chance (it is one of those predicted)."""

    def predict(_: np.ndarray, asked: np.ndarray) -> Said:  # type: ignore[type-arg]
        return Said.of([(answers.lengths[each, :1], np.ones(1)) for each in np.flatnonzero(asked)])

    return predict


def nearest(answers: Answers, numbers: Floats) -> Predictor:
    """History by similar texts."""

    def predict(seen: np.ndarray, asked: np.ndarray) -> Said:  # type: ignore[type-arg]
        places = np.flatnonzero(seen)[texts.nearest(numbers[seen], numbers[asked], NEAREST)]
        return Said.of([weighed(answers.lengths[row, 0], answers.ended[row, 0]) for row in places])

    return predict


def history(answers: Answers, prompts: Sequence[Prompt], states: States) -> Predictor:
    ids = [instruction_id(texts.instruction_and_input(prompt)[0]) for prompt in prompts]

    def predict(seen: np.ndarray, asked: np.ndarray) -> Said:  # type: ignore[type-arg]
        known = AnswerHistory(
            [
                Answered(
                    ids[n],
                    int(states.num_input_tokens[n]),
                    int(answers.lengths[n, 0]),
                    bool(answers.ended[n, 0]),
                )
                for n in np.flatnonzero(seen)
            ]
        )
        rows, most = np.flatnonzero(asked).tolist(), int(answers.most)
        return _said([known.predict(ids[n], int(states.num_input_tokens[n]), most) for n in rows])

    return predict


def forest(answers: Answers, prompts: Sequence[Prompt], states: States) -> Predictor:
    ids = np.array([instruction_id(texts.instruction_and_input(prompt)[0]) for prompt in prompts], np.uint64)
    rows = features(*texts.sentences(prompts), states.num_input_tokens.astype(np.int64))

    def predict(seen: np.ndarray, asked: np.ndarray) -> Said:  # type: ignore[type-arg]
        ones = np.ones(int(seen.sum()))
        lengths = answers.lengths[seen, 0].astype(np.float32)
        grown = grow(Observations(rows[seen], lengths, answers.ended[seen, 0], ids[seen], ones))
        return _said(grown.predict(rows[asked], ids[asked], [int(answers.most)] * int(asked.sum())))

    return predict


def _said(found: Sequence[LengthPrediction | None]) -> Said:
    told = [each for each in found if each is not None]
    assert len(told) == len(found)
    means = np.array([each.mean for each in told])
    return Said(means, means, np.stack([each.quantiles for each in told]).astype(np.float64))


def served(answers: Answers, numbers: Floats, by_distance: bool = True) -> Predictor:
    """What a server learns from `numbers` [n, width]: states, or counts of tokens, which it does not take
    distances of; it chooses the strength of the ridge from the rows.
    """

    def predict(seen: np.ndarray, asked: np.ndarray) -> Said:  # type: ignore[type-arg]
        lengths = answers.lengths[seen, 0].astype(np.float32)
        known = KnownStates(0, numbers[seen], lengths, answers.ended[seen, 0])
        model = learned_by_distance(known)[0] if by_distance else learned(known)
        return _said([model.predict(each, 0, int(answers.most)) for each in numbers[asked]])

    return predict


def cut(answers: Answers, mosts: Sequence[int]) -> Answers:
    """The first answers as if each had been asked for with another max_tokens."""
    most = np.random.default_rng(1).choice(mosts, len(answers.lengths))[:, None]
    lengths, ended = answers.lengths.copy(), answers.ended.copy()
    ended[:, :1] &= lengths[:, :1] <= most
    lengths[:, :1] = np.minimum(lengths[:, :1], most)
    return Answers(lengths, ended)


def counts_of(prompt: Ids) -> Floats:
    """What a server reads of a prompt before it is computed."""
    return numbers_of(buckets_of(prompt), len(prompt))


# --- costs, in microseconds of one thread for one request


def cost(work: Callable[[int], object], count: int) -> float:
    work(0)
    started_s = time.process_time()
    for number in range(count):
        work(number)
    return round((time.process_time() - started_s) / count * 1e6, 1)


def cost_of_words(prompts: Sequence[Prompt], width: int) -> float:
    weights = np.ones(width)

    def work(number: int) -> float:
        found = texts.hashed_words(prompts[number], width)
        return float(sum(weights[place] * value for place, value in found.items()))

    return cost(work, min(TIMED, len(prompts)))


def cost_of_embeddings(states: States) -> float:
    """The rows of a message's tokens, their mean, and a product of it."""
    width = states.ends.shape[2]
    rows, weights = np.ones((50_000, width), np.float32), np.ones(width, np.float32)
    tokens = [
        np.random.default_rng(0).integers(0, 50_000, int(count)) for count in states.num_input_tokens[:TIMED]
    ]
    return cost(lambda number: rows[tokens[number]].mean(axis=0) @ weights, len(tokens))


def cost_of_sentences(prompts: Sequence[Prompt]) -> float:
    from python_backends.prediction.encoder import PACKAGED, SentenceEncoder

    encoder = SentenceEncoder(PACKAGED)
    return cost(lambda number: encoder.encode([prompts[number].text]), min(30, len(prompts)))
