"""The output of `magnus`: Magnus's Table I, the gains over VS, a table of all runs, JSON, and Magnus's
figures 8 to 10 as one plot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.magnus.requests import Ask
from benchmarks.magnus.runs import Row, Run
from benchmarks.results_file import write_result

BASELINES = ("vs", "vsq", "ccb", "magnus")
ABLATION = ("vs", "glp", "abp", "magnus")
PANELS = {
    "request_throughput": "requests/s",
    "mean_response_s": "mean response time, s",
    "p95_response_s": "95th percentile of response time, s",
    "valid_tok_s": "valid tokens/s",
}
COLOURS = {
    "vs": "#8a8f98",
    "vsq": "#c9a227",
    "ccb": "#4178bc",
    "glp": "#c9a227",
    "abp": "#4178bc",
    "magnus": "#76b900",
}


def correlations(asked: Sequence[Ask], lengths: NDArray[np.int64]) -> dict[str, float]:
    """Returns Pearson's correlation of the input's length with the answer's length for each task."""
    given, tasks = np.array([ask.num_given_tokens for ask in asked]), np.array([ask.task for ask in asked])
    return {
        task: float(np.corrcoef(given[tasks == task], lengths[tasks == task])[0, 1])
        for task in dict.fromkeys(tasks.tolist())
    }


def gains(rows: Sequence[Row], over: str = "vs") -> list[dict[str, Any]]:
    """Returns Magnus's gains at each rate, as shares of the request throughput, mean and tail response time
    of the policy `over`.
    """
    found = {(row.policy, row.rate): row for row in rows}
    made = []
    for rate in dict.fromkeys(row.rate for row in rows):
        other, magnus = found.get((over, rate)), found.get(("magnus", rate))
        if other and magnus:
            names = ("request_throughput", "mean_response_s", "p95_response_s")
            changes = {name: getattr(magnus, name) / getattr(other, name) - 1 for name in names}
            made.append({"over": over, "rate": rate} | changes)
    return made


def say_gains(rows: Sequence[Row]) -> str:
    lines = []
    for over in ("vs", "vsq", "ccb"):
        for gain in gains(rows, over):
            lines.append(
                f"Magnus compared with {over.upper()} at {gain['rate']:.1f} requests/s: request throughput"
                f" {gain['request_throughput']:+.0%}, mean response {gain['mean_response_s']:+.0%}, tail"
                f" {gain['p95_response_s']:+.0%}"
            )
    return "\n".join(lines)


def shown(row: Row) -> dict[str, str]:
    return {name: value if isinstance(value, str) else f"{value:.2f}" for name, value in asdict(row).items()}


def write_json(path: Path, runs: Sequence[Run], about: dict[str, Any]) -> None:
    rows = [run.row for run in runs]
    result = {
        **about,
        "rows": [asdict(row) for row in rows],
        "gains": [gain for over in ("vs", "vsq", "ccb") for gain in gains(rows, over)],
        "batches": [
            {
                "policy": run.policy,
                "rate": run.rate,
                "batches": run.num_batches,
                "out_of_memory": run.num_out_of_memory,
                "failed": run.num_failed,
            }
            for run in runs
            if run.num_batches
        ],
    }
    write_result(path, result)


def write_plot(path: Path, rows: Sequence[Row]) -> None:
    """Draws a column of panels for the baselines and another one for the ablation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(PANELS), 2, figsize=(10, 11), sharex=True)
    for column, (title, policies) in enumerate((("baselines", BASELINES), ("ablation", ABLATION))):
        for panel, (name, label) in zip(panels[:, column], PANELS.items(), strict=True):
            for policy in policies:
                line = [(row.rate, getattr(row, name)) for row in rows if row.policy == policy]
                panel.plot(*zip(*line, strict=True), marker="o", label=policy.upper(), color=COLOURS[policy])
            panel.set(ylabel=label, ylim=(0, None))
            panel.spines[["top", "right"]].set_visible(False)
        panels[0, column].set_title(title)
        panels[0, column].legend(frameon=False)
        panels[-1, column].set_xlabel("requests that arrive per second")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
