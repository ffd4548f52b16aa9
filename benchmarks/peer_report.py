"""What `peers.py` tells: figures from the times of a round, medians, ratios, a table, JSON and a plot."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_work import Timing
from benchmarks.results_file import write_result


@dataclass(frozen=True, slots=True)
class Row:
    engine: str
    shape: str
    dtype: str
    tok_s: float
    req_s: float
    latency_mean_s: float
    latency_p99_s: float
    itl_mean_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    peak_rss_gib: float


def row_of(engine: str, shape: str, dtype: str, timings: list[Timing], peak_rss_gib: float) -> Row:
    wall = max(timing.ended for timing in timings) - min(timing.submitted for timing in timings)
    latencies = [timing.ended - timing.submitted for timing in timings]
    gaps = np.concatenate([np.diff(timing.tokens) for timing in timings]) * 1e3
    return Row(
        engine=engine,
        shape=shape,
        dtype=dtype,
        tok_s=sum(len(timing.tokens) for timing in timings) / wall,
        req_s=len(timings) / wall,
        latency_mean_s=float(np.mean(latencies)),
        latency_p99_s=float(np.percentile(latencies, 99)),
        itl_mean_ms=float(gaps.mean()),
        itl_p50_ms=float(np.percentile(gaps, 50)),
        itl_p99_ms=float(np.percentile(gaps, 99)),
        peak_rss_gib=peak_rss_gib,
    )


def median(rows: list[Row]) -> Row:
    """Of each figure by itself."""
    figures = {name: float(np.median([getattr(row, name) for row in rows])) for name in list(asdict(rows[0]))[3:]}
    return Row(rows[0].engine, rows[0].shape, rows[0].dtype, **figures)


def ratios(rows: list[Row]) -> dict[str, float]:
    """Output tokens per second of each of our ways over those of every other engine; of the others over our own loop alone."""
    ours = [row for row in rows if row.engine.startswith("gapless")]
    pairs = [(own, row) for own in ours for row in rows if row.shape == own.shape and row not in ours]
    pairs += [(row, own) for own in ours for row in ours if own.engine == "gapless" != row.engine and row.shape == own.shape]
    return {f"{one.shape}: {one.engine} / {other.engine}": one.tok_s / other.tok_s for one, other in pairs}


def table(rows: list[Row]) -> str:
    names = list(asdict(rows[0]))
    cells = [[value if isinstance(value, str) else f"{value:.2f}" for value in asdict(row).values()] for row in rows]
    lines = [names, ["---"] * len(names), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_json(path: Path, rows: list[Row], rounds: int, more: dict[str, Any]) -> None:
    write_result(path, {"rounds": rounds, "rows": [asdict(row) for row in rows], "ratios": ratios(rows), **more})


def write_plot(path: Path, rows: list[Row]) -> None:
    """A panel a shape for tokens per second, another for the time between tokens (p50 as a bar, p99 as a dot)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shapes = list(dict.fromkeys(row.shape for row in rows))
    figure, panels = pyplot.subplots(len(shapes), 2, figsize=(11, 1.2 + 0.38 * len(rows) + len(shapes)), squeeze=False)
    for shape, (speed, gap) in zip(shapes, panels, strict=True):
        shown = sorted((row for row in rows if row.shape == shape), key=lambda row: row.tok_s)
        names = [row.engine for row in shown]
        colours = ["#76b900" if name.startswith("gapless") else "#8a8f98" for name in names]
        speed.bar_label(speed.barh(names, [row.tok_s for row in shown], color=colours), fmt="%.0f", padding=3)
        speed.set(title=f"shape {shape}, {shown[0].dtype}: output tokens/s", xmargin=0.12)
        gap.barh(names, [row.itl_p50_ms for row in shown], color=colours)
        gap.plot([row.itl_p99_ms for row in shown], names, "k.", label="p99")
        gap.set(title="between tokens, ms: median and p99", xscale="log")
        gap.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
