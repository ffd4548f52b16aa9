"""What the streams of one round took, and medians of rounds. Used by `triton_cost`, `many_streams` and
`front_cost`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.common.work import Timing, Work


@dataclass(frozen=True, slots=True)
class Figures:
    """Pieces are responses with text."""

    tok_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    pieces_s: float
    between_pieces_p50_ms: float
    between_pieces_p99_ms: float


def figures_of(work: Work, timings: Sequence[Timing]) -> Figures:
    """`timings`: in `tokens`, when each piece came."""
    wall_s = max(timing.ended for timing in timings) - min(timing.submitted for timing in timings)
    first_ms = [(timing.tokens[0] - timing.submitted) * 1e3 for timing in timings if timing.tokens]
    between_ms = np.concatenate([np.diff(timing.tokens) for timing in timings]) * 1e3
    tokens, pieces = sum(job.max_tokens for job in work.jobs), sum(len(timing.tokens) for timing in timings)
    first_p50, first_p99 = np.percentile(first_ms, (50, 99)).tolist()
    between_p50, between_p99 = np.percentile(between_ms, (50, 99)).tolist()
    return Figures(tokens / wall_s, first_p50, first_p99, pieces / wall_s, between_p50, between_p99)


def medians(rows: Iterable[Any], names: Sequence[str], digits: int = 1) -> list[dict[str, Any]]:
    """Of dataclasses: a row for each combination of what the fields `names` have, in the order in which they
    come, with the median of each other field.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in (asdict(each) for each in rows):
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return [
        {
            name: value if name in names else median([row[name] for row in some], digits)
            for name, value in some[0].items()
        }
        for some in groups.values()
    ]


def median(numbers: Sequence[float], digits: int) -> float:
    return round(float(np.median(numbers)), digits)
