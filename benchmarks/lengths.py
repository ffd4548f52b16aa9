"""Measures predicted lengths: errors and calibration of the quantiles, by task, on held-out requests; and the
cost of a prediction.

    python -m benchmarks.lengths --json benchmarks/results/lengths.json

Forests learn from `--train` requests of the bundled model's eight tasks and predict `--test` held-out ones
(rows `forest`). They are compared with predictions from recent history (`history`) and with a forest without
calibrated quantiles (`raw`). The table has for each level the share of answers that are not longer than the
predicted quantile. *Pearson* is the correlation of the input's length with the answer's, as in Magnus's Table
I. Costs are processor time of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import numpy as np

from benchmarks.common.command_line import command_line
from benchmarks.common.length_requests import Asked, Remembered, draw, features_of, observations, task_names
from benchmarks.results_file import table, write_result
from python_backends.nouns.request import LengthPrediction
from python_backends.prediction.encoder import PACKAGED, SentenceEncoder
from python_backends.prediction.forest import Forest, grow
from python_backends.prediction.history import Answered, AnswerHistory
from python_backends.prediction.lengths import LEVELS
from python_backends.prediction.request_log import instruction_id

SEED = 5
SIZES = (250, 1000, 4000)  # of the training
NINETY = LEVELS.tolist().index(0.9)


@dataclass(frozen=True, slots=True)
class Row:
    predictor: str
    trained_on: int
    task: str
    requests: int
    mean_length: float
    mean_abs_error: float
    pearson: float
    covered: list[float]  # at LEVELS
    q90_over_length: float  # mean of the 0.9 quantile / mean length: how wide the quantiles are


def rows_of(
    name: str, trained_on: int, asked: Sequence[Asked], predictions: Sequence[LengthPrediction]
) -> list[Row]:
    tasks = np.array([each.task for each in asked])
    groups = [("all", np.ones(len(asked), bool)), *((task, tasks == task) for task in task_names())]
    lengths = np.array([each.length for each in asked])
    inputs = np.array([each.subject.num_input_tokens for each in asked])
    means, quantiles = np.array([p.mean for p in predictions]), np.stack([p.quantiles for p in predictions])
    return [
        Row(
            name,
            trained_on,
            task,
            int(group.sum()),
            round(float(lengths[group].mean()), 1),
            round(float(np.abs(means - lengths)[group].mean()), 2),
            round(float(np.corrcoef(inputs[group], lengths[group])[0, 1]), 3),
            (lengths[group, None] <= quantiles[group]).mean(axis=0).round(3).tolist(),
            round(float(quantiles[group, NINETY].mean() / lengths[group].mean()), 3),
        )
        for task, group in groups
    ]


def by_history(train: Sequence[Asked], asked: Sequence[Asked]) -> list[LengthPrediction]:
    seen = [
        Answered(instruction_id(each.subject.instruction), each.subject.num_input_tokens, each.length, True)
        for each in train
    ]
    history = AnswerHistory(seen)
    found = [
        history.predict(
            instruction_id(each.subject.instruction), each.subject.num_input_tokens, each.subject.max_tokens
        )
        for each in asked
    ]
    return [prediction for prediction in found if prediction is not None]


def seconds(work: Callable[[], object]) -> float:
    started_s = time.process_time()
    work()
    return time.process_time() - started_s


def costs(forest: Forest, asked: Sequence[Asked], encoder: Any) -> dict[str, float]:
    """Returns milliseconds of processor time."""
    single = [seconds(lambda each=each: encoder.encode([each.subject.user_input])) for each in asked[:60]]  # type: ignore[misc]
    batch = seconds(lambda: encoder.encode([each.subject.user_input for each in asked[60:124]])) / 64
    made = features_of(asked[:100], encoder)
    ids = np.array([instruction_id(each.subject.instruction) for each in asked[:100]], np.uint64)
    one = seconds(lambda: [forest.predict(made[i : i + 1], ids[i : i + 1]) for i in range(100)]) / 100
    history = seconds(lambda: by_history(asked[:1000], asked[:200])) / 200
    values = {"encode_one": sorted(single)[30], "encode_of_64": batch, "forest": one, "history": history}
    return {f"{name}_ms": round(value * 1e3, 3) for name, value in values.items()}


def _shown(row: Row) -> dict[str, Any]:
    shown = asdict(row)
    covered = zip((f"{level:g}" for level in LEVELS), shown.pop("covered"), strict=True)
    return {**shown, **dict(covered)}


def main() -> None:
    parser = command_line(__doc__, quick="only to see that it runs")
    parser.add_argument("--train", type=int, default=max(SIZES), help="requests to learn from")
    parser.add_argument("--test", type=int, default=4000, help="held-out requests")
    parser.add_argument(
        "--encoder", default=PACKAGED, help="packaged, a directory, or a name in the local Hugging Face cache"
    )
    asked = parser.parse_args()
    num_train, num_test = (200, 200) if asked.quick else (asked.train, asked.test)
    rng = Random(SEED)
    train, test = (
        draw(task_names(), num_train, rng, held_out=False),
        draw(task_names(), num_test, rng, held_out=True),
    )
    encoder = SentenceEncoder(asked.encoder)
    known = Remembered(encoder, [*train, *test])
    rows, fits = [], {}
    ids = np.array([instruction_id(each.subject.instruction) for each in test], np.uint64)
    for size in [size for size in SIZES if size < num_train] + [num_train]:
        started_s = time.process_time()
        forest = grow(observations(train[:size], known))
        fits[str(size)] = round(time.process_time() - started_s, 2)
        made = features_of(test, known)
        rows += rows_of("forest", size, test, forest.predict(made, ids))
    raw = Forest(
        **{
            **{name: getattr(forest, name) for name in Forest.__slots__},
            "levels": LEVELS[None],
            "instructions": ids[:0],
        }
    )
    rows += rows_of("raw", num_train, test, raw.predict(made))
    rows += rows_of("history", num_train, test, by_history(train, test))
    cost = costs(forest, test, encoder)
    print("processor time, ms a request:", cost, "| of a fit, s, by observations:", fits)
    if asked.json:
        told = {"encoder": asked.encoder, "levels": LEVELS.tolist(), "cost": cost, "fit_s": fits}
        write_result(asked.json, told | {"rows": [asdict(row) for row in rows]})
    print(table([_shown(row) for row in rows]))


if __name__ == "__main__":
    main()
