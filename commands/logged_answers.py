"""The answers of the request log as `make stats` tells of them: their lengths, and what was predicted at each
stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from python_backends.nouns.request import QUANTILE_LEVELS, Floats
from python_backends.nouns.stages import PROMPT_END, STAGES, TEXT, WRITTEN, name_of
from python_backends.prediction.lengths import Doubles
from python_backends.prediction.request_log import RequestLog

HALF = QUANTILE_LEVELS.index(0.5)


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """A prediction of one answer."""

    mean: float
    quantiles: Floats  # [levels]
    version: int  # 0: predicted by history

    @property
    def median(self) -> float:
        return float(self.quantiles[HALF])


@dataclass(frozen=True, slots=True, eq=False)
class Logged:
    """An answer and its predictions, by stage."""

    at_s: float
    instruction: str
    length: int
    ended: bool  # false: cut short
    said: dict[int, Said] = field(default_factory=dict)

    @property
    def is_predicted(self) -> bool:
        """Before its first token."""
        return PROMPT_END in self.said or TEXT in self.said

    @property
    def before(self) -> Said:
        """The last prediction before its first token."""
        return self.said[PROMPT_END if PROMPT_END in self.said else TEXT]


@dataclass(frozen=True, slots=True)
class StageRow:
    stage: str
    answers: int
    length: float
    error: float  # mean, absolute, of the predicted median, in tokens
    error_of_mean: float
    rank_correlation: float  # Spearman's; NaN if all are equal
    covered: tuple[float, ...]  # at LEVELS


def logged(log: RequestLog, last: int) -> list[Logged]:
    """The newest `last` answers, oldest first."""
    columns = "id, at_s, instruction, num_output_tokens, ended, instruction_text, mean, quantiles, version"
    rows = log.rows(columns, last)[::-1]
    found = {row[0]: _logged(*row[1:]) for row in rows}
    for number, stage, *said in log.stages(rows[0][0]) if rows else ():
        if number in found:  # no newer answer
            found[number].said[stage] = _said(*said)
    return list(found.values())


def _logged(at_s: float, instruction: int, length: int, ended: int, text: str | None, *said: Any) -> Logged:
    known = {} if said[0] is None else {TEXT: _said(*said)}
    return Logged(at_s, text or f"#{instruction:016x}"[:9], length, bool(ended), known)


def _said(mean: float, quantiles: bytes, version: int) -> Said:
    return Said(mean, np.frombuffer(quantiles, "<f4"), version)


def stage_rows(answers: Sequence[Logged]) -> list[StageRow]:
    """Of the answers that ended by themselves, for each stage that has predicted some."""
    found = []
    for stage in STAGES:
        known = [each for each in answers if each.ended and stage in each.said]
        if known:
            found.append(_row(stage, known))
    return found


def _row(stage: int, answers: Sequence[Logged]) -> StageRow:
    lengths = np.array([each.length for each in answers], np.float64)
    means = np.array([each.said[stage].mean for each in answers])
    quantiles = np.stack([each.said[stage].quantiles for each in answers])
    return StageRow(
        name_of(stage),
        len(answers),
        float(lengths.mean()),
        float(np.abs(quantiles[:, HALF] - lengths).mean()),
        float(np.abs(means - lengths).mean()),
        rank_correlation(means, lengths),
        tuple((lengths[:, None] <= quantiles).mean(axis=0).tolist()),
    )


def rank_correlation(a: Doubles, b: Doubles) -> float:
    """Spearman's; NaN if one of them has the same value everywhere."""
    first, second = _ranks(a), _ranks(b)
    if first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Doubles) -> Doubles:
    """Equal values share the mean of their places."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Doubles = (counts.cumsum() - (counts - 1) / 2)[places]
    return ranks


def as_json(answers: Sequence[Logged]) -> list[dict[str, Any]]:
    """One object for each: `length`, `ended`, and what was predicted at the prompt's end, from the text, and
    while it was `written`, by tokens: `predicted` (the median), `mean`, `quantiles`; null: nothing was.
    """
    return [
        {"length": each.length, "ended": each.ended}
        | _told(each.said.get(PROMPT_END))
        | {"text": _told(each.said.get(TEXT))}
        | {"written": {name_of(stage): _told(each.said[stage]) for stage in WRITTEN if stage in each.said}}
        for each in answers
    ]


def _told(said: Said | None) -> dict[str, Any]:
    if said is None:
        return {"predicted": None, "mean": None, "quantiles": None}
    return {
        "predicted": said.median,
        "mean": said.mean,
        "quantiles": [float(each) for each in said.quantiles],
    }
