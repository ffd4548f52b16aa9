"""Changes the mix of tasks during a test: the error of predicted lengths rises, the learner acts, the error
falls again.

    python -m benchmarks.drift --json benchmarks/results/drift.json --plot benchmarks/results/drift.png

Requests of the bundled model's tasks come at a steady rate in virtual time: first four tasks whose answers
nearly copy their input, then the four that change it, then all eight. Predictor, request log and learner are
the server's own, on a virtual clock; an answer ends as soon as it is requested. The predictor (`learning`;
before it has a forest, recent history) is compared with the first forest, which learns nothing more
(`frozen`), and with recent history alone (`history`). An error is that of the predicted mean, in tokens, over
the requests of one virtual minute.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np
from tqdm import tqdm

from benchmarks.common.command_line import command_line
from benchmarks.common.length_requests import Asked, Remembered, draw, task_names
from benchmarks.results_file import table, write_result
from python_backends.learner import Learner
from python_backends.nouns.messages import AnswerRecord, LengthAnswer
from python_backends.nouns.request import Finish, LengthPrediction
from python_backends.prediction.encoder import PACKAGED, Encoder, SentenceEncoder
from python_backends.prediction.forest import Forest
from python_backends.prediction.history import AnswerHistory
from python_backends.prediction.learning import Fit, learn
from python_backends.prediction.lengths import LEVELS
from python_backends.prediction.predictor import Budget, Predictor
from python_backends.prediction.request_log import RequestLog, instruction_id
from python_backends.prediction.versions import current
from python_backends.settings import PredictionSettings

PHASE_S = 1200.0  # each of three
QUICK_PHASE_S, QUICK_RATE = 240.0, 0.1
MINUTE_S = 60
HISTORY_EVERY = 20  # requests
NINETY = LEVELS.tolist().index(0.9)
COPYING = ("grammar correction", "to camelCase", "to snake_case", "bug fixing")


@dataclass(frozen=True, slots=True)
class Row:
    minute: int
    requests: int
    learning: float  # mean absolute error, tokens
    frozen: float
    history: float
    covered_90: float  # share of answers within the 0.9 quantile of `learning`
    version: int  # at the end of the minute


class Run:
    """The serving predictor, log and learner, over a virtual clock."""

    def __init__(self, directory: Path, encoder: Encoder) -> None:
        self.now_s = 0.0
        settings = PredictionSettings(encoder=encoder.name)
        self._directory = directory
        self._learner = Learner(settings, directory, self._learn, lambda: self.now_s)
        self._reader = RequestLog(directory)
        budget = Budget(1.0, lambda: self.now_s)
        self._predictor = Predictor(
            settings, directory, lambda: encoder, budget, lambda: self.now_s, encoder_from=0
        )
        self._history = AnswerHistory()
        self._frozen: Forest | None = None
        self.learned_at_s: list[float] = []

    def step(self, now_s: float, asked: Asked) -> tuple[float, float, float, bool]:
        """Returns the absolute errors of the three, and whether the answer was within the 0.9 quantile; NaN
        where there was no prediction.
        """
        self.now_s = now_s
        answer, by_history = self._predictor.answer([asked.subject])[0], self._by_history(asked)
        if answer.prediction is None:
            answer = answer.changed(prediction=by_history)
        errors = [
            abs(mean - asked.length)
            for mean in (_mean(answer.prediction), self._frozen_mean(answer), _mean(by_history))
        ]
        covered = answer.prediction is not None and asked.length <= float(answer.prediction.quantiles[NINETY])
        self._learner.take([_record(asked, answer)])
        self._learner.learn_if_due()
        return errors[0], errors[1], errors[2], covered

    def _learn(self, directory: Path, encoder: str) -> Fit:
        version = learn(directory, encoder)
        self.learned_at_s.append(self.now_s)
        if self._frozen is None and version is not None:
            self._frozen = Forest.load(version.path(directory))
        return lambda: 0

    def _frozen_mean(self, answer: LengthAnswer) -> float:
        """Returns the mean of the first forest; until there is one, that of recent history."""
        if self._frozen is None or answer.features is None:
            return _mean(answer.prediction)
        mean: float = self._frozen.predict(answer.features[None])[0].mean
        return mean

    def _by_history(self, asked: Asked) -> LengthPrediction | None:
        if self._reader.last_id() % HISTORY_EVERY == 0:
            self._history = AnswerHistory(self._reader.recent())
        return self._history.predict(
            instruction_id(asked.subject.instruction),
            asked.subject.num_input_tokens,
            asked.subject.max_tokens,
        )

    @property
    def version(self) -> int:
        version = current(self._directory)
        return version.number if version else 0

    def close(self) -> None:
        self._learner.close()
        self._reader.close()


def _mean(prediction: LengthPrediction | None) -> float:
    return float("nan") if prediction is None else prediction.mean


def _record(asked: Asked, answer: LengthAnswer) -> AnswerRecord:
    tokens = asked.subject.num_input_tokens
    return AnswerRecord(0.0, asked.subject.instruction, tokens, tokens, asked.length, Finish.STOP, answer)


def requests(rate: float, phase_s: float, seed: int) -> list[Asked]:
    """Returns the requests, each mix of tasks for the same time."""
    rng, count = Random(seed), int(phase_s * rate)
    changing = [name for name in task_names() if name not in COPYING]
    return [
        asked
        for tasks in (COPYING, changing, task_names())
        for asked in draw(tasks, count, rng, held_out=False)
    ]


def run(asked: Sequence[Asked], rate: float, encoder: Encoder) -> tuple[list[Row], list[float]]:
    """Returns a row for each minute, and the times when a version was learned."""
    with tempfile.TemporaryDirectory() as directory:
        made = Run(Path(directory), encoder)
        rows: list[Row] = []
        minute: list[tuple[float, float, float, bool]] = []
        for number, each in enumerate(tqdm(asked, desc="asking", unit="request")):
            now_s = number / rate
            if now_s >= MINUTE_S * (len(rows) + 1):
                rows.append(_row(len(rows), minute, made.version))
                minute = []
            minute.append(made.step(now_s, each))
        rows.append(_row(len(rows), minute, made.version))
        made.close()
    return rows, made.learned_at_s


def _row(number: int, minute: Sequence[tuple[float, float, float, bool]], version: int) -> Row:
    means = [round(float(value), 2) for value in np.nanmean(np.array(minute, float), axis=0)]
    return Row(number, len(minute), means[0], means[1], means[2], means[3], version)


def write_plot(path: Path, rows: Sequence[Row], learned_at_s: Sequence[float], phase_s: float) -> None:
    import matplotlib.pyplot as plt

    minutes = [row.minute + 0.5 for row in rows]
    figure, axes = plt.subplots(figsize=(9, 4))
    for name, style in (("frozen", ":"), ("history", "--"), ("learning", "-")):
        axes.plot(minutes, [getattr(row, name) for row in rows], style, label=name)
    for at_s in learned_at_s:
        axes.axvline(at_s / 60, color="grey", linewidth=0.5)
    for border, text in zip(
        (0, phase_s / 60, 2 * phase_s / 60),
        ("tasks that copy", "tasks that change", "all tasks"),
        strict=True,
    ):
        axes.axvline(border, color="black", linewidth=1.2)
        axes.text(border + 0.3, axes.get_ylim()[1] * 0.93, text)
    axes.set(
        xlabel="minutes (thin lines: the learner made a version)",
        ylabel="mean absolute error, tokens",
        ylim=(0, None),
    )
    axes.legend(loc="center right")
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main() -> None:
    parser = command_line(
        __doc__, quick="a few requests: does it run at all?", plot="also draw the results here"
    )
    parser.add_argument("--rate", type=float, default=1.0, help="requests a virtual second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--encoder", default=PACKAGED, help="packaged, a directory, or a name in the local Hugging Face cache"
    )
    given = parser.parse_args()
    rate, phase_s = (QUICK_RATE, QUICK_PHASE_S) if given.quick else (given.rate, PHASE_S)
    asked = requests(rate, phase_s, given.seed)
    rows, learned_at_s = run(asked, rate, Remembered(SentenceEncoder(given.encoder), asked))
    if given.json:
        told = {"encoder": given.encoder, "learned_at_s": learned_at_s, "rows": [asdict(row) for row in rows]}
        write_result(given.json, told)
    if given.plot:
        write_plot(given.plot, rows, learned_at_s, phase_s)
    print(table([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
