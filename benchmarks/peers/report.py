"""The output of `peers`: figures from the times of a round, medians with their spread, ratios, a table,
JSON and a plot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.common.scored_text import TextAgreement
from benchmarks.common.work import Timing, Work
from benchmarks.results_file import table as markdown
from benchmarks.results_file import write_result


@dataclass(frozen=True, slots=True)
class Row:
    """One round of one engine.

    `itl` is the time between two tokens of a request at its client: 0 for tokens of one response. `piece` is
    the time between two responses with tokens, which is the same for an engine that sends tokens one by one.
    """

    engine: str
    shape: str
    dtype: str
    weights: str
    in_flight: int
    round: int
    tok_s: float
    req_s: float
    latency_mean_s: float
    latency_p99_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_mean_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    piece_p50_ms: float
    piece_p99_ms: float
    peak_rss_gib: float

    @property
    def case(self) -> str:
        return f"{self.shape}, {self.dtype}, weights {self.weights}, {self.in_flight} in flight"


ABOUT = ("engine", "shape", "dtype", "weights", "in_flight", "round")
FIGURES = tuple(name for name in Row.__dataclass_fields__ if name not in ABOUT)
NONE: Mapping[tuple[str, str], TextAgreement] = MappingProxyType({})
SHOWN = (
    "tok_s",
    "latency_mean_s",
    "latency_p99_s",
    "ttft_p50_ms",
    "itl_mean_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "piece_p99_ms",
    "peak_rss_gib",
)


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, the smallest and the largest value of several rounds."""

    median: float
    min: float
    max: float

    def __str__(self) -> str:
        digits = 0 if self.median >= 100 else 1 if self.median >= 10 else 2
        return f"{self.median:.{digits}f} ({self.min:.{digits}f}–{self.max:.{digits}f})"


@dataclass(frozen=True, slots=True)
class Case:
    """What all engines that are compared with each other have. `weights`: how they keep them, as
    `model.weights` has it. `at_once`: how many requests are in flight, in a pass of its own each.
    """

    shape: str
    dtype: str
    work: Work
    weights: str = "same"
    at_once: tuple[int, ...] = (16,)
    num_busy: int = 0  # other processes that compute meanwhile


def row_of(
    engine: str, case: Case, in_flight: int, number: int, timings: list[Timing], peak_rss_gib: float
) -> Row:
    wall = max(timing.ended for timing in timings) - min(timing.submitted for timing in timings)
    latencies = [timing.ended - timing.submitted for timing in timings]
    first = np.array([timing.tokens[0] - timing.submitted for timing in timings]) * 1e3
    gaps = np.concatenate([np.diff(timing.tokens) for timing in timings]) * 1e3
    pieces = np.concatenate([np.diff(np.unique(timing.tokens)) for timing in timings]) * 1e3
    return Row(
        engine=engine,
        shape=case.shape,
        dtype=case.dtype,
        weights=case.weights,
        in_flight=in_flight,
        round=number,
        tok_s=sum(len(timing.tokens) for timing in timings) / wall,
        req_s=len(timings) / wall,
        latency_mean_s=float(np.mean(latencies)),
        latency_p99_s=percentile(np.array(latencies), 99),
        ttft_p50_ms=percentile(first, 50),
        ttft_p99_ms=percentile(first, 99),
        itl_mean_ms=float(gaps.mean()),
        itl_p50_ms=percentile(gaps, 50),
        itl_p99_ms=percentile(gaps, 99),
        piece_p50_ms=percentile(pieces, 50),
        piece_p99_ms=percentile(pieces, 99),
        peak_rss_gib=peak_rss_gib,
    )


def fields_of(work: Work) -> dict[str, Any]:
    """Returns what the JSON says of the work."""
    prompts, answers = [len(job.prompt) for job in work.jobs], [job.max_tokens for job in work.jobs]
    return {
        "name": work.name,
        "requests": len(work.jobs),
        "in_flight": work.in_flight,
        "prompt_tokens": sum(prompts),
        "longest_prompt": max(prompts, default=0),
        "answer_tokens": sum(answers),
        "longest_answer": max(answers, default=0),
        "max_model_tokens": work.max_model_tokens,
    }


def line_of(work: Work) -> str:
    of = fields_of(work)
    return (
        f"work {of['name']}: {of['requests']} requests, {of['in_flight']} in flight; prompts of up to"
        f" {of['longest_prompt']:,} tokens, {of['prompt_tokens']:,} in all; answers of up to"
        f" {of['longest_answer']:,}, {of['answer_tokens']:,} in all"
    )


def percentile(values: Any, level: float) -> float:
    """Returns a percentile; 0 without values."""
    return float(np.percentile(values, level)) if len(values) else 0.0


def spread(values: Sequence[float]) -> Spread:
    return Spread(float(np.median(values)), float(min(values)), float(max(values)))


def by_engine(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Returns the rounds of each (case, engine), in the order of their first round."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.case, row.engine), []).append(row)
    return found


def summaries(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns a row for each engine and case: median, smallest and largest value of each figure."""
    return [
        {name: getattr(rounds[0], name) for name in ABOUT if name != "round"}
        | {"rounds": len(rounds)}
        | {name: asdict(spread([getattr(row, name) for row in rounds])) for name in FIGURES}
        for rounds in by_engine(rows).values()
    ]


def ratios(rows: Sequence[Row]) -> dict[str, Spread]:
    """Returns ratios of output tokens per second, round by round: each of Gapless's rows over every other
    engine, and over Gapless's loop alone.
    """
    found, made = by_engine(rows), {}
    for case, one in found:
        for other_case, other in found:
            if other_case != case or not one.startswith("gapless") or one == other:
                continue
            if other.startswith("gapless") and other.partition(" ")[0] != "gapless":
                continue
            pairs = of_same_rounds(found[case, one], found[case, other])
            if pairs:
                made[f"{case}: {one} / {other}"] = spread(
                    [mine.tok_s / theirs.tok_s for mine, theirs in pairs]
                )
    return made


def of_same_rounds(ours: Sequence[Row], theirs: Sequence[Row]) -> list[tuple[Row, Row]]:
    numbered = {row.round: row for row in theirs}
    return [(row, numbered[row.round]) for row in ours if row.round in numbered]


def table(rows: Sequence[Row], agreements: Mapping[tuple[str, str], TextAgreement] = NONE) -> str:
    """Returns a table of medians, with the smallest and largest value of the rounds in brackets.
    `agreements`: by shape and engine.
    """
    lines = [
        {"shape": rounds[0].shape, "in flight": rounds[0].in_flight, "engine": engine}
        | {name: str(spread([getattr(row, name) for row in rounds])) for name in SHOWN}
        | (columns_of(agreements.get((rounds[0].shape, engine))) if agreements else {})
        for (_, engine), rounds in by_engine(rows).items()
    ]
    return markdown(lines)


def columns_of(agreement: TextAgreement | None) -> dict[str, str]:
    return {
        "likeliest": f"{agreement.likeliest:.3f}" if agreement else "",
        "perplexity": f"{agreement.perplexity:.2f}" if agreement else "",
    }


def write_json(path: Path, rows: Sequence[Row], more: dict[str, Any]) -> None:
    found = {name: asdict(ratio) for name, ratio in ratios(rows).items()}
    write_result(
        path, {**more, "rows": summaries(rows), "ratios": found, "passes": [asdict(row) for row in rows]}
    )


def write_plot(path: Path, rows: Sequence[Row]) -> None:
    """Draws for each case a panel of tokens per second and a panel of the time between tokens (p50 as a bar,
    p99 as a dot).
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(row.case for row in rows))
    figure, panels = pyplot.subplots(
        len(cases), 2, figsize=(11, 1.2 + 0.38 * len(summaries(rows)) + len(cases)), squeeze=False
    )
    for case, (speed, gap) in zip(cases, panels, strict=True):
        found = summaries([row for row in rows if row.case == case])
        shown = sorted(found, key=lambda row: float(row["tok_s"]["median"]))
        names = [row["engine"] for row in shown]
        colours = ["#76b900" if name.startswith("gapless") else "#8a8f98" for name in names]
        medians = [row["tok_s"]["median"] for row in shown]
        below = [row["tok_s"]["median"] - row["tok_s"]["min"] for row in shown]
        above = [row["tok_s"]["max"] - row["tok_s"]["median"] for row in shown]
        bars = speed.barh(names, medians, xerr=[below, above], color=colours)
        speed.bar_label(bars, fmt="%.0f", padding=3)
        speed.set(title=f"{case}: output tokens/s, median and spread", xmargin=0.12)
        gap.barh(names, [row["itl_p50_ms"]["median"] for row in shown], color=colours)
        gap.plot([row["itl_p99_ms"]["median"] for row in shown], names, "k.", label="p99")
        gap.set(title="between tokens, ms: median and p99", xscale="log")
        gap.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
