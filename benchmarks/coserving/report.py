"""What `coserving` makes of its rounds: medians and spreads, shares, a table and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.coserving.modes import Measured
from benchmarks.coserving.requests import Seen

Row = dict[str, Any]  # of one mode at one load
Round = dict[str, Row]  # by mode

LEAST_LEFT = 0.05  # of the time of serving alone; of less no share is told, which chance would make
SHOWN = {  # column of the table → key of a row
    "trained tok/s": "trained_tok_s",
    "of PEFT": "share_of_peft",
    "of what is left": "share_of_own",
    "served": "served_of_serve_only",
    "TPOT P50": "tpot_p50_ms",
    "P99": "tpot_p99_ms",
    "token gap P99": "itl_p99_ms",
    "first token P99": "ttft_p99_ms",
    "within SLO": "attainment",
}


def row_of(measured: Measured, slo_s: float) -> Row:
    """Of one run. Figures of requests are None where none were served."""
    run = measured.run
    row: Row = {
        "trained_tok_s": measured.trained_tok_s,
        "forward_tok_s": measured.forward_tok_s,
        "busy_share": run.busy_share if run else None,
        "peak_rss_gib": measured.peak_rss_gib,
    }
    return row | (figures(run.seen, slo_s) if run else {})


def figures(seen: Seen, slo_s: float) -> Row:
    return {
        "served_tok_s": seen.output_tok_s,
        "tpot_p50_ms": percentile_ms(seen.tpot_s, 50),
        "tpot_p99_ms": percentile_ms(seen.tpot_s, 99),
        "itl_p99_ms": percentile_ms(seen.gaps_s, 99),
        "ttft_p50_ms": percentile_ms(seen.ttft_s, 50),
        "ttft_p99_ms": percentile_ms(seen.ttft_s, 99),
        "attainment": seen.attainment(slo_s),
        "num_requests": len(seen.tpot_s) + seen.num_unanswered,
        "num_unanswered": seen.num_unanswered,
    }


def percentile_ms(seconds: NDArray[np.float64], level: float) -> float | None:
    return float(np.percentile(seconds, level)) * 1e3 if len(seconds) else None


def add_shares(round_: Round) -> None:
    """Of PEFT's trainer alone; of our trainer alone, times the share of time that serving alone leaves; and
    of the tokens that serving alone delivers.
    """
    alone, peft, served = (round_[name] for name in ("train_only", "train_only_peft", "serve_only"))
    idle_share = 1 - served["busy_share"]
    left = alone["trained_tok_s"] * idle_share if idle_share >= LEAST_LEFT else 0.0
    for row in round_.values():
        is_shared = "served_tok_s" in row
        row["share_of_peft"] = ratio(row["trained_tok_s"], peft["trained_tok_s"])
        row["share_of_own"] = ratio(row["trained_tok_s"], left) if is_shared else None
        row["served_of_serve_only"] = (
            ratio(row["served_tok_s"], served["served_tok_s"]) if is_shared else None
        )


def ratio(value: float, of: float) -> float | None:
    """None where there is none of it: in a run that was too short, or of what hardly is left."""
    return value / of if of > 0 else None


def medians(load: str, rounds: Sequence[Round], slo_s: float) -> list[Row]:
    """A row for each mode: the median of each figure over the rounds, and `spread` with least and most."""
    rows = []
    for mode in rounds[0]:
        found = {key: [each[mode].get(key) for each in rounds if mode in each] for key in rounds[0][mode]}
        numbers = {key: [value for value in values if value is not None] for key, values in found.items()}
        rows.append(
            {"mode": mode, "load": load, "slo_ms": slo_s * 1e3}
            | {key: median(values) for key, values in numbers.items()}
            | {"spread": {key: [min(values), max(values)] for key, values in numbers.items() if values}}
        )
    return rows


def triton_rounds(rows: Sequence[Row], load: str) -> list[Round]:
    """Those of `load`, through Triton: two of `rows` for each, without a job and with one."""
    rounds, of_load = [], [row for row in rows if row["load"] == load]
    for pair in zip(of_load[::2], of_load[1::2], strict=True):
        alone, with_job = (
            {key: value for key, value in row.items() if key not in ("load", "round", "job")}
            for row in sorted(pair, key=lambda row: bool(row["job"]))
        )
        share = ratio(with_job["served_tok_s"], alone["served_tok_s"])
        rounds.append({"triton": alone, "triton, a job": with_job | {"served_of_serve_only": share}})
    return rounds


def median(values: Iterable[float]) -> float | None:
    values = list(values)
    return round(float(np.median(values)), 4) if values else None


def shown(row: Row) -> dict[str, str]:
    return {"shape": row["shape"], "load": row["load"], "mode": row["mode"]} | {
        column: _text(key, row.get(key), row["spread"].get(key)) for column, key in SHOWN.items()
    }


def _text(key: str, value: float | None, spread: list[float] | None) -> str:
    if value is None or spread is None:
        return "–"
    if key == "trained_tok_s":
        return f"{value:.0f} ({spread[0]:.0f}–{spread[1]:.0f})"
    if key.endswith("_ms"):
        return f"{value:.0f} ms"
    return f"{value:.3f}" if key == "attainment" else f"{value:.2f}"


def draw(path: Path, rows: Sequence[Row]) -> None:
    """A panel for each load: trained tokens a second, by the P99 of the time per output token."""
    from matplotlib import pyplot

    loads = list(dict.fromkeys(row["load"] for row in rows))
    figure, axes = pyplot.subplots(
        1, len(loads), figsize=(5.5 * len(loads), 4.2), layout="constrained", squeeze=False
    )
    for axis, load in zip(axes[0], loads, strict=True):
        here = [row for row in rows if row["load"] == load]
        axis.axvline(here[0]["slo_ms"], color="gray", linestyle=":", label="SLO")
        for row in here:
            if row.get("tpot_p99_ms") is not None and row["mode"] != "serve_only":
                place = (row["tpot_p99_ms"], row["trained_tok_s"])
                axis.plot(*place, "o")
                axis.annotate(row["mode"], place, (5, 5), textcoords="offset points")
            elif row["mode"].startswith("train_only"):
                axis.axhline(row["trained_tok_s"], color="gray", linewidth=0.7)
                axis.text(0.02, row["trained_tok_s"], row["mode"], transform=axis.get_yaxis_transform())
        axis.set(title=f"{load} load", xscale="log", ylim=(0, None), ylabel="trained tokens a second")
        axis.set_xlabel("P99 of the time per output token, ms")
        axis.margins(x=0.25)
        axis.legend(loc="lower left")
    figure.savefig(path, dpi=120)
