"""How long a static batch will take: nearest neighbours of (requests, longest input, longest answer) among
batches that have run.

Magnus's serving-time estimator (arXiv 2406.04785): KNN on batch size, batch length and batch generation
length, relearned from batches with wrong estimates. Our choice: 5 neighbours, weighted by distance, with each
number scaled by its standard deviation. Used by the static policies; one thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass

import numpy as np
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

NEIGHBOURS = 5
MAX_BATCHES = 4096  # only the newest ones are used
RELEARN_EVERY_S = 120.0
ERROR_S, ERROR_SHARE = 2.0, 0.2


@dataclass(frozen=True, slots=True)
class BatchShape:
    num_requests: int
    max_input_tokens: int
    max_output_tokens: int  # predicted before the batch ran, actual after it


def teaches(estimated_s: float, actual_s: float) -> bool:
    """Whether a finished batch is learned from: the estimate was off by more
    than 2 s and by more than 20 % of its time.
    """
    error_s = abs(estimated_s - actual_s)
    return error_s > ERROR_S and error_s > ERROR_SHARE * actual_s


class BatchTime:
    def __init__(self, shapes: list[BatchShape], seconds: list[float]) -> None:
        """Learns from at least one measured batch: `shapes` and their `seconds`."""
        self._batches = deque(zip(shapes, seconds, strict=True), maxlen=MAX_BATCHES)
        self._news: list[tuple[BatchShape, float]] = []
        self._fit()

    def estimate_s(self, shape: BatchShape) -> float:
        return float(self._model.predict([astuple(shape)])[0])

    def finished(self, shape: BatchShape, estimated_s: float, actual_s: float) -> None:
        """A batch has run; `shape` has its actual length."""
        if teaches(estimated_s, actual_s):
            self._news.append((shape, actual_s))

    def relearn(self) -> int:
        """To be called every RELEARN_EVERY_S. Returns how many batches were new."""
        news, self._news = self._news, []
        self._batches.extend(news)
        if news:
            self._fit()
        return len(news)

    def _fit(self) -> None:
        shapes = np.array([astuple(shape) for shape, _ in self._batches], np.float64)
        neighbours = KNeighborsRegressor(min(NEIGHBOURS, len(shapes)), weights="distance")
        self._model: Pipeline = make_pipeline(StandardScaler(), neighbours)
        self._model.fit(shapes, [seconds for _, seconds in self._batches])
