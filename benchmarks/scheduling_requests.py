"""What `scheduling.py` asks: held-out prompts of the bundled model's eight tasks, how long its answers are, and what was predicted.

One half of the prompts teaches the forest, the other half is asked. Everything is made once and kept in a file: the answers' lengths
are those of answers that the model really gives, greedily and in the chat format.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "build"))

from benchmarks.bundled_prompts import NUM_TASKS, TOKEN_BUDGET, Drawn, answer_lengths, draw_prompts, greedy_request
from benchmarks.peer_environments import FOLDER
from python_backends.config import EngineSettings, Settings
from python_backends.instance import build
from python_backends.request import QUANTILE_LEVELS, LengthPrediction, Request

MAX_TOKENS = 256  # that a client allows, because it is the default
MAX_PROMPT_TOKENS = 400


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """n prompts, one behind the other."""

    tokens: NDArray[np.int32]  # [tokens]
    ends: NDArray[np.int64]  # [n] of each prompt in `tokens`
    lengths: NDArray[np.int64]  # [n] tokens of the answers, their end among them
    means: NDArray[np.float64]  # [n] predicted
    quantiles: NDArray[np.float32]  # [n, levels] predicted

    def __len__(self) -> int:
        return len(self.lengths)

    def request(self, number: int, place: int) -> Request:
        """Number `number` asks the prompt at `place`."""
        prompt = self.tokens[self.ends[place - 1] if place else 0 : self.ends[place]]
        return greedy_request(number, prompt, MAX_TOKENS)

    def prediction(self, place: int) -> LengthPrediction:
        return LengthPrediction(float(self.means[place]), self.quantiles[place])

    def truth(self, place: int) -> LengthPrediction:
        length = float(self.lengths[place])
        return LengthPrediction(length, np.full(len(QUANTILE_LEVELS), length, np.float32))


def read_pool(count: int) -> Pool:
    """`count` prompts to ask; made at the first call, which takes some minutes."""
    path = FOLDER / f"scheduling_pool_{count}.npz"
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
    _, engine = build(Settings(engine=EngineSettings(kind="openvino", slots=32, token_budget=TOKEN_BUDGET)))
    lengths = answer_lengths(prompts, engine, MAX_TOKENS)
    engine.close()
    half = len(drawn) // 2
    means, quantiles = _predict(drawn, lengths, half)
    asked = prompts[half:]
    return Pool(np.concatenate(asked), np.cumsum([len(prompt) for prompt in asked]), lengths[half:], means, quantiles)


def _predict(drawn: list[Drawn], lengths: NDArray[np.int64], half: int) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Of the second half, from the first."""
    from python_backends.prediction.encoder import PACKAGED, CachedEncoder, SentenceEncoder
    from python_backends.prediction.features import features
    from python_backends.prediction.forest import Observations, grow

    encoder = CachedEncoder(SentenceEncoder(PACKAGED), max_texts=100)
    instructions, inputs = [each.exercise.instruction for each in drawn], [each.exercise.given for each in drawn]
    given = np.array([each.num_given_tokens for each in drawn])
    rows = []
    for start in tqdm(range(0, len(inputs), 32), desc="features"):
        part = slice(start, start + 32)
        rows.append(features(encoder.encode(instructions[part]), encoder.encode(inputs[part]), given[part]))
    seen, ids = np.concatenate(rows), np.array([zlib.crc32(instruction.encode()) for instruction in instructions], np.uint64)
    ended = lengths < MAX_TOKENS
    forest = grow(Observations(seen[:half], lengths[:half].astype(np.float32), ended[:half], ids[:half], np.ones(half)))
    told = forest.predict(seen[half:], ids[half:])
    return np.array([each.mean for each in told]), np.array([each.quantiles for each in told], np.float32)
