"""Draws the distributions of a load test: the share of requests by time, one line for each load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .report import FIGURES, Limits

TITLES = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "end to end"}


def plot(results: Sequence[dict[str, Any]], limits: Limits, title: str, path: Path) -> None:
    """Writes the picture to `path`. Raises ImportError without matplotlib (`build/set-up dev`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(FIGURES), figsize=(12, 4), sharey=True, constrained_layout=True)
    for axis, name in zip(axes, FIGURES, strict=True):
        _draw(axis, name, results)
        if (limit := {"ttft": limits.ttft_ms, "tpot": limits.tpot_ms}.get(name)) is not None:
            axis.axvline(limit, color="gray", linestyle="--", linewidth=1, label=f"limit {limit:g} ms")
        axis.legend(fontsize="small", loc="lower right")
    axes[0].set_ylabel("share of requests, %")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(axis: Any, name: str, results: Sequence[dict[str, Any]]) -> None:
    for result in results:
        values = np.sort(result["samples_ms"][name])
        axis.step(
            values,
            np.arange(1, len(values) + 1) / max(1, len(values)) * 100,
            where="post",
            label=result["load"]["name"],
        )
    axis.set(title=TITLES[name], xlabel="ms", xscale="log", ylim=(0, 101))
    axis.grid(alpha=0.3, which="both")
