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

from benchmarks.peer_environments import FOLDER
from python_backends.config import EngineSettings, Settings
from python_backends.instance import build
from python_backends.request import QUANTILE_LEVELS, LengthPrediction, Request, Sampling
from python_backends.scheduling.scheduler import SlotScheduler

MODEL = Path(__file__).resolve().parent.parent / "models" / "bundled"
END = 0  # the model's end of an answer
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
        return Request(number, prompt, Sampling(MAX_TOKENS, stop_ids=(END,)))

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
    from bundled.corpus import load_corpora
    from bundled.evaluation import draw
    from bundled.tasks import all_tasks
    from bundled.velin import read_lexicon
    from transformers import AutoTokenizer

    tokenizer, (_, held_out) = AutoTokenizer.from_pretrained(MODEL), load_corpora()
    exercises, prompts = [], []
    tasks = all_tasks(read_lexicon(MODEL))
    for task in tasks:
        for exercise in draw(task, held_out, 2 * count // len(tasks)):
            chat = [{"role": "user", "content": exercise.prompt}]
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            prompt = np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)
            if len(prompt) <= MAX_PROMPT_TOKENS:
                exercises.append(exercise)
                prompts.append(prompt)
    order = np.random.default_rng(1).permutation(len(prompts))
    exercises, prompts = [exercises[i] for i in order], [prompts[i] for i in order]
    lengths = _answer_lengths(prompts)
    given = np.array([len(tokenizer.encode(exercise.given, add_special_tokens=False)) for exercise in exercises])
    instructions, inputs = [exercise.instruction for exercise in exercises], [exercise.given for exercise in exercises]
    half = len(prompts) // 2
    means, quantiles = _predict(instructions, inputs, given, lengths, half)
    asked = prompts[half:]
    return Pool(np.concatenate(asked), np.cumsum([len(prompt) for prompt in asked]), lengths[half:], means, quantiles)


def _answer_lengths(prompts: list[NDArray[np.int32]]) -> NDArray[np.int64]:
    _, engine = build(Settings(engine=EngineSettings(kind="openvino", slots=32, token_budget=512)))
    scheduler, lengths = SlotScheduler(engine.limits, 512), np.zeros(len(prompts), np.int64)
    for number, prompt in enumerate(prompts):
        scheduler.submit(Request(number, prompt, Sampling(MAX_TOKENS, stop_ids=(END,))), np.zeros(0, np.int32))
    with tqdm(total=len(prompts), desc="answers' lengths", unit="answer") as bar:
        while (plan := scheduler.plan()) is not None:
            engine.launch(plan)
            events = scheduler.apply(plan, engine.collect())
            lengths[events.request_ids] += 1
            bar.update(int(np.count_nonzero(events.finishes)))
    engine.close()
    return lengths


def _predict(
    instructions: list[str], inputs: list[str], given: NDArray[np.int64], lengths: NDArray[np.int64], half: int
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Of the second half, from the first."""
    from python_backends.prediction.encoder import PACKAGED, CachedEncoder, SentenceEncoder
    from python_backends.prediction.features import features
    from python_backends.prediction.forest import Observations, grow

    encoder = CachedEncoder(SentenceEncoder(PACKAGED), max_texts=100)
    rows = []
    for start in tqdm(range(0, len(inputs), 32), desc="features"):
        part = slice(start, start + 32)
        rows.append(features(encoder.encode(instructions[part]), encoder.encode(inputs[part]), given[part]))
    seen, ids = np.concatenate(rows), np.array([zlib.crc32(instruction.encode()) for instruction in instructions], np.uint64)
    ended = lengths < MAX_TOKENS
    forest = grow(Observations(seen[:half], lengths[:half].astype(np.float32), ended[:half], ids[:half], np.ones(half)))
    told = forest.predict(seen[half:], ids[half:])
    return np.array([each.mean for each in told]), np.array([each.quantiles for each in told], np.float32)
