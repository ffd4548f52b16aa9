"""The requests of `scheduling`: held-out prompts of the bundled model's eight tasks, the lengths of its
answers, and predicted lengths.

History and forest learn from one half of the prompts; the other half are the requests. All data are made once
and kept in a file. The lengths are those of the model's own greedy answers in the chat format.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.common.bundled_prompts import (
    NUM_TASKS,
    TOKEN_BUDGET,
    Drawn,
    answer_lengths,
    draw_prompts,
    greedy_request,
    sources,
)
from benchmarks.peers.environments import FOLDER
from python_backends.engine.choice import choose
from python_backends.instance.build import build
from python_backends.nouns.messages import AnswerRecord, LengthAnswer
from python_backends.nouns.request import QUANTILE_LEVELS, Finish, Floats, LengthPrediction, Request
from python_backends.prediction.request_log import RequestLog, instruction_id
from python_backends.settings import EngineSettings, Settings

MAX_TOKENS = 256  # of every request: the default
MAX_PROMPT_TOKENS = 400


class Source(Enum):
    """The source of predicted lengths."""

    FOREST = "forest"  # for every request, before the run
    HISTORY = "history"  # recent answers to the same instruction; for every request, before the run
    TRUTH = "truth"
    NONE = "none"  # nothing is predicted
    # of real prompts only
    WORDS = "words"  # by their words
    STATE = "state"  # by their words, then by the model's state at the end of the prompt
    TAIL = "tail"  # as STATE, means inflated by their tail: TIE (arXiv 2604.00499)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """n prompts in one array, one after the other."""

    tokens: NDArray[np.int32]  # [tokens]
    ends: NDArray[np.int64]  # [n] of each prompt in `tokens`
    lengths: NDArray[np.int64]  # [n] tokens of the answers, including the end
    means: NDArray[np.float64]  # [n] predicted by the forest
    quantiles: NDArray[np.float32]  # [n, levels] predicted by the forest
    history_means: NDArray[np.float64]  # [n] predicted from recent answers alone
    history_quantiles: NDArray[np.float32]  # [n, levels]
    num_input_tokens: NDArray[np.int64]  # [n]

    def __len__(self) -> int:
        return len(self.lengths)

    def request(self, number: int, place: int) -> Request:
        """Returns request `number` with the prompt at `place`."""
        prompt = self.tokens[self.ends[place - 1] if place else 0 : self.ends[place]]
        return greedy_request(number, prompt, MAX_TOKENS)

    def prediction(self, place: int, source: Source) -> LengthPrediction:
        """Returns a prediction made before the run."""
        if source is Source.TRUTH:
            length = float(self.lengths[place])
            return LengthPrediction(length, np.full(len(QUANTILE_LEVELS), length, np.float32))
        if source is Source.HISTORY:
            return LengthPrediction(float(self.history_means[place]), self.history_quantiles[place])
        return LengthPrediction(float(self.means[place]), self.quantiles[place])

    def later(self, place: int, source: Source) -> LengthPrediction | None:
        """What is predicted once the prompt has been computed. None: nothing else."""
        return None


def read_pool(count: int) -> Pool:
    """Returns `count` prompts. The first call makes them, which takes some minutes."""
    path = FOLDER / f"scheduling_pool_{count}_{sources()}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        pool = _make(count)
        np.savez_compressed(path, **{name: getattr(pool, name) for name in Pool.__slots__})
    with np.load(path) as arrays:
        return Pool(**arrays)


def _make(count: int) -> Pool:
    drawn = [each for each in draw_prompts(2 * count // NUM_TASKS) if len(each.prompt) <= MAX_PROMPT_TOKENS]
    drawn = [drawn[place] for place in np.random.default_rng(1).permutation(len(drawn))]
    prompts = [np.array(each.prompt, np.int32) for each in drawn]
    settings = Settings(engine=EngineSettings(kind="torch", slots=32, token_budget=TOKEN_BUDGET))
    _, engine = build(choose(settings).settings)
    lengths = answer_lengths(prompts, engine, MAX_TOKENS)
    engine.close()
    half = len(drawn) // 2
    asked = prompts[half:]
    return Pool(
        np.concatenate(asked),
        np.cumsum([len(prompt) for prompt in asked]),
        lengths[half:],
        *_arrays(_learn(drawn, lengths, half)),
        *_arrays(_history(drawn, lengths, half)),
        np.array([each.num_given_tokens for each in drawn[half:]]),
    )


def _arrays(told: Sequence[LengthPrediction]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    return np.array([each.mean for each in told]), np.array([each.quantiles for each in told], np.float32)


def _history(drawn: Sequence[Drawn], lengths: NDArray[np.int64], half: int) -> list[LengthPrediction]:
    """Predicts the second half from the answers of the first half."""
    from python_backends.prediction.history import Answered, AnswerHistory

    asked = [(instruction_id(each.exercise.instruction), each.num_given_tokens) for each in drawn]
    seen = zip(asked[:half], lengths[:half].tolist(), strict=True)
    history = AnswerHistory([Answered(*who, length, length < MAX_TOKENS) for who, length in seen])
    found = (history.predict(*who, MAX_TOKENS) for who in asked[half:])
    told = [prediction for prediction in found if prediction is not None]
    assert len(told) == len(drawn) - half
    return told


def _learn(drawn: Sequence[Drawn], lengths: NDArray[np.int64], half: int) -> list[LengthPrediction]:
    """Predicts the second half with a forest that has learned from the first half."""
    from python_backends.prediction.encoder import PACKAGED, CachedEncoder, SentenceEncoder
    from python_backends.prediction.features import features
    from python_backends.prediction.forest import Forest
    from python_backends.prediction.learning import learn

    encoder = CachedEncoder(SentenceEncoder(PACKAGED), max_texts=100)
    instructions, inputs = (
        [each.exercise.instruction for each in drawn],
        [each.exercise.given for each in drawn],
    )
    given = np.array([each.num_given_tokens for each in drawn])
    rows = []
    for start in tqdm(range(0, len(inputs), 32), desc="features", disable=None):
        part = slice(start, start + 32)
        rows.append(features(encoder.encode(instructions[part]), encoder.encode(inputs[part]), given[part]))
    seen = np.concatenate(rows)
    answers = [_record(drawn[place], int(lengths[place]), seen[place], encoder.name) for place in range(half)]
    ids = np.array([instruction_id(instruction) for instruction in instructions[half:]], np.uint64)
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        log = RequestLog(directory, max_answers=len(drawn))
        log.add(answers)
        log.close()
        version = learn(directory, encoder.name)
        assert version is not None
        return Forest.load(version.path(directory)).predict(seen[half:], ids, [MAX_TOKENS] * len(ids))


def _record(each: Drawn, length: int, features: Floats, encoder: str) -> AnswerRecord:
    return AnswerRecord(
        at_s=0.0,
        instruction=each.exercise.instruction,
        num_prompt_tokens=len(each.prompt),
        num_input_tokens=each.num_given_tokens,
        num_output_tokens=length,
        finish=Finish.STOP if length < MAX_TOKENS else Finish.LENGTH,
        predicted=LengthAnswer(features=features, encoder=encoder),
    )
