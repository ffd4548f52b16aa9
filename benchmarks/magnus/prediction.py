"""The predictions of the policies in `magnus` that use them: the length of an answer and the time of a
batch, learned before and during a run.

Features of all prompts are computed before the clock starts and kept in a folder: a sentence encoder of 22
million parameters costs as much as answers of a model of 4 million. Its time is measured and printed. The
forest predicts while the clock runs; it relearns in its own process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.common.bundled_prompts import sources
from benchmarks.magnus.requests import Ask
from benchmarks.magnus.static_batching.batch_time import BatchShape, BatchTime
from benchmarks.magnus.static_batching.mode import Served
from python_backends.nouns.request import Floats
from python_backends.prediction.encoder import PACKAGED, CachedEncoder, SentenceEncoder
from python_backends.prediction.features import features
from python_backends.prediction.forest import Forest, Observations, grow
from python_backends.prediction.request_log import instruction_id, teaches

CHUNK = 64
NUM_TIMED = 32


def features_of(asked: Sequence[Ask], cache: Path) -> tuple[Floats, float]:
    """Returns features [asked, 21], and the encoder's seconds for a single request. `asked` are the first of
    all requests.
    """
    path = cache / f"features_{sources()}.npz"
    if path.exists():
        with np.load(path) as known:
            made, seconds = known["features"], float(known["seconds"])
        if len(made) >= len(asked):
            return made[: len(asked)], seconds
    made, seconds = _encode(asked)
    np.savez(path, features=made, seconds=np.float64(seconds))
    return made, seconds


def _encode(asked: Sequence[Ask]) -> tuple[Floats, float]:
    encoder = CachedEncoder(SentenceEncoder(PACKAGED), 1000)
    rows = []
    for first in tqdm(range(0, len(asked), CHUNK), desc="features", unit="chunk", disable=None):
        part = asked[first : first + CHUNK]
        instructions, inputs = (
            encoder.encode([ask.instruction for ask in part]),
            encoder.encode([ask.given for ask in part]),
        )
        rows.append(features(instructions, inputs, np.array([ask.num_given_tokens for ask in part])))
    started = time.perf_counter()
    for ask in asked[:NUM_TIMED]:
        encoder.encode([f"{ask.given} "])  # another text than the one that is known
    return np.concatenate(rows), (time.perf_counter() - started) / NUM_TIMED


def observations(
    asked: Sequence[Ask], made: Floats, lengths: NDArray[np.int64], max_tokens: int
) -> Observations:
    ids = np.array([instruction_id(ask.instruction) for ask in asked], np.uint64)
    return Observations(made, lengths.astype(np.float32), lengths < max_tokens, ids, np.ones(len(asked)))


class Lengths:
    """Magnus's generation-length predictor: the mean of a forest. Relearns every `relearn_every_s` from its
    errors.
    """

    def __init__(
        self,
        seen: Observations,
        forest: Forest,
        asked: Observations,
        pool: ProcessPoolExecutor,
        relearn_every_s: float,
    ) -> None:
        """`forest` was learned from `seen`. Requests are rows of `asked`, whose lengths are not known yet."""
        self.num_relearned = 0
        self.errors_tokens: list[float] = []
        self._predicted: dict[int, float] = {}
        self._seen, self._forest, self._asked, self._pool = seen, forest, asked, pool
        self._relearn_every_s = relearn_every_s
        self._learned_s = 0.0
        self._lessons: list[tuple[int, int]] = []  # request, its length
        self._growing: Future[Forest] | None = None

    def expected_tokens(self, requests: Sequence[int]) -> list[int]:
        if not requests:
            return []
        rows = list(requests)
        means = [prediction.mean for prediction in self._forest.predict(self._asked.features[rows])]
        self._predicted |= dict(zip(rows, means, strict=True))
        return [round(mean) for mean in means]

    def ended(self, request: int, length: int) -> None:
        self.errors_tokens.append(self._predicted[request] - length)
        if teaches(self._predicted[request], length):
            self._lessons.append((request, length))

    def relearn_if_due(self, now_s: float) -> None:
        if self._growing is not None and self._growing.done():
            self._forest, self._growing = self._growing.result(), None
            self.num_relearned += 1
        if self._growing is None and self._lessons and now_s - self._learned_s > self._relearn_every_s:
            self._seen, self._lessons, self._learned_s = self._with_lessons(), [], now_s
            self._growing = self._pool.submit(grow, self._seen)

    def finish(self) -> None:
        """Waits for a forest that is being learned, so that it takes no processor time from the next run."""
        if self._growing is not None:
            self._growing.result()

    def _with_lessons(self) -> Observations:
        """Returns the earlier observations and the lessons. Learned from errors alone, a forest would be
        biased towards them.
        """
        rows, lengths = (list(column) for column in zip(*self._lessons, strict=True))
        news = replace(self._asked[rows], lengths=np.array(lengths, np.float32))
        names = ("features", "lengths", "ended", "instructions", "weights")
        return Observations(
            *(np.concatenate([getattr(self._seen, name), getattr(news, name)]) for name in names)
        )


class BatchSeconds:
    """Magnus's serving-time estimator over shapes of batches. Relearns every `relearn_every_s` from its
    errors.

    Small models take a fraction `scale` of the time of large ones: an error of 2 s there is an error of 2 ·
    `scale` here.
    """

    def __init__(self, measured: Sequence[Served], relearn_every_s: float, scale: float) -> None:
        self.num_relearned = 0
        self.errors_s: list[float] = []
        self._scale = scale
        self._time = BatchTime(
            [_shape(served) for served in measured], [served.seconds / scale for served in measured]
        )
        self._relearn_every_s = relearn_every_s
        self._learned_s = 0.0
        self._known: dict[tuple[int, ...], float] = {}  # since it last learned

    def __call__(self, shapes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the seconds of each of `shapes` [batches, (requests, L, G)]."""
        return np.array([self._estimate_s(tuple(shape)) for shape in shapes.tolist()])

    def finished(self, served: Served) -> None:
        estimated_s = self._estimate_s(served.batch.shape)
        self.errors_s.append(estimated_s - served.seconds)
        self._time.finished(_shape(served), estimated_s / self._scale, served.seconds / self._scale)

    def relearn_if_due(self, now_s: float) -> None:
        if now_s - self._learned_s > self._relearn_every_s:
            self.num_relearned += bool(self._time.relearn())
            self._learned_s, self._known = now_s, {}

    def _estimate_s(self, shape: tuple[int, ...]) -> float:
        if shape not in self._known:
            self._known[shape] = self._time.estimate_s(BatchShape(*shape)) * self._scale
        return self._known[shape]


def _shape(served: Served) -> BatchShape:
    """Returns the shape of a batch with the actual length."""
    count, prompt_tokens, _ = served.batch.shape
    return BatchShape(count, prompt_tokens, served.num_steps)


def root_mean_square(errors: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))
