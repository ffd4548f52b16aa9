"""The output of `cluster`: a row for each policy and load, the curves, and a picture of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster.requests import Doubles
from benchmarks.cluster.runs import Served, pooled

Key = tuple[float, float, str]  # load, coefficient of variation, and the name of the case


@dataclass(frozen=True, slots=True)
class Row:
    case: str
    policy: str
    mean_ttft_s: float  # median of the runs
    p99_ttft_s: float  # median of the runs
    p99_tpot_ms: float  # of all runs together; of ordinary requests, as both before
    evictions: int  # of all runs together, as all that follow
    moves: int  # complete moves with blocks
    resubmissions: int  # waiting requests that were sent to another instance
    off: int  # moves that were not completed
    high_mean_ttft_s: float | None  # of requests of high priority
    high_p99_ttft_s: float | None
    high_p99_tpot_ms: float | None
    by_seed_p99_ttft_s: str  # of ordinary requests, a run each
    by_seed_evictions: str


def row_of(policy: str, case: str, runs: Sequence[Served]) -> Row:
    served = pooled(runs)
    high = served.is_high
    high_mean_s, high_p99_s, high_tpot_ms = _times(served, high) if high.any() else (None, None, None)
    done = served.moves["done"]
    return Row(
        case,
        policy,
        round(_median([float(each.ttft_s[~each.is_high].mean()) for each in runs]), 3),
        round(_median([_p99(each.ttft_s[~each.is_high]) for each in runs]), 3),
        _times(served, ~high)[2],
        served.num_evictions,
        served.num_copied,
        done - served.num_copied,
        served.moves.total() - done,
        high_mean_s,
        high_p99_s,
        high_tpot_ms,
        " ".join(f"{_p99(each.ttft_s[~each.is_high]):.2f}" for each in runs),
        " ".join(str(each.num_evictions) for each in runs),
    )


def _times(served: Served, chosen: Any) -> tuple[float, float, float]:
    """Returns mean and P99 seconds to the first token, and P99 milliseconds per token."""
    ttft_s, tpot_s = served.ttft_s[chosen], served.tpot_s[chosen]
    return (
        round(float(ttft_s.mean()), 3),
        round(_p99(ttft_s), 3),
        round(_p99(tpot_s[np.isfinite(tpot_s)]) * 1000, 1),
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A policy with another one that served the same requests. A ratio above 1: `policy` is better."""

    case: str
    policy: str
    other: str
    p99_ttft: float  # median of the ratios of the runs, as the next one
    mean_ttft: float
    wins: str  # runs in which `policy` has the smaller P99, of all
    evictions: float  # those of `policy` for each of the other one, of all runs together
    by_seed_p99_ttft: str


def compare(case: str, runs: Mapping[str, Sequence[Served]]) -> list[Comparison]:
    """Compares each two policies; `runs` are those of each policy, by seed."""
    names = list(runs)
    return [
        _comparison(case, policy, other, runs[policy], runs[other])
        for place, policy in enumerate(names)
        for other in names[:place]
    ]


def _comparison(
    case: str, policy: str, other: str, mine: Sequence[Served], theirs: Sequence[Served]
) -> Comparison:
    pairs = [(a.ttft_s[~a.is_high], b.ttft_s[~b.is_high]) for a, b in zip(mine, theirs, strict=True)]
    p99 = [_p99(b) / _p99(a) for a, b in pairs]
    evictions = sum(each.num_evictions for each in mine), sum(each.num_evictions for each in theirs)
    return Comparison(
        case,
        policy,
        other,
        round(_median(p99), 2),
        round(_median([float(b.mean() / a.mean()) for a, b in pairs]), 2),
        f"{sum(each > 1 for each in p99)} of {len(p99)}",
        round(evictions[0] / max(1, evictions[1]), 2),
        " ".join(f"{each:.2f}" for each in p99),
    )


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _p99(values: Doubles) -> float:
    return float(np.percentile(values, 99)) if len(values) else float("nan")


def by_load(rows: Sequence[Row], keys: Sequence[Key]) -> dict[str, Any]:
    """Returns the curves by figure, policy, load and coefficient of variation."""
    figures = {
        "p99_ttft_s": "p99_ttft_s",
        "mean_ttft_s": "mean_ttft_s",
        "p99_tpot_ms": "p99_tpot_ms",
        "evictions": "evictions",
        "migrations": "moves",
    }
    found: dict[str, Any] = {figure: {} for figure in figures}
    for load, cv, case in keys:
        for row in (row for row in rows if row.case == case):
            for figure, name in figures.items():
                of_policy = found[figure].setdefault(row.policy, {})
                of_policy.setdefault(f"{load:g}", {})[f"{cv:g}"] = getattr(row, name)
    return found


def draw(path: Path, rows: Sequence[Row], keys: Sequence[Key]) -> None:
    """Draws P99 time to the first token over load, a line for each policy, a panel for each arrival CV."""
    from matplotlib import pyplot

    kinds = list(dict.fromkeys(cv for _, cv, _ in keys))
    figure, axes = pyplot.subplots(
        1, len(kinds), figsize=(6 * len(kinds), 4), layout="constrained", squeeze=False, sharey=True
    )
    for axis, kind in zip(axes[0], kinds, strict=True):
        loads = {case: load for load, cv, case in keys if cv == kind}
        for policy in dict.fromkeys(row.policy for row in rows if row.case in loads):
            mine = [row for row in rows if row.policy == policy and row.case in loads]
            axis.plot([loads[row.case] for row in mine], [row.p99_ttft_s for row in mine], "o-", label=policy)
        axis.set(xlabel="load / capacity", ylabel="P99 first token, s", yscale="log")
        axis.set_title(f"arrivals of CV {kind:g}", loc="left")
    axes[0][0].legend()
    figure.savefig(path, dpi=120)
