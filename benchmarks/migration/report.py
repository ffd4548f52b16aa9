"""What `migration` makes of its moves: percentiles, a picture, sentences and a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.migration.answers import Moved
from benchmarks.results_file import table

WAYS = ("blocks", "blocking", "recompute")
PERCENTILES = {"median": 50, "p90": 90, "p99": 99, "max": 100}
LEAST_MS = 0.1  # a downtime that others are divided by


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A move of a request of about `tokens` tokens, and that request's other gaps."""

    tokens: int
    gaps_s: NDArray[np.float64]
    moved: Moved

    @property
    def downtime_ms(self) -> float:
        return (self.moved.gap_s - float(np.median(self.gaps_s))) * 1e3

    def as_json(self) -> dict[str, Any]:
        """`parts_ms`: from the last token to the news that it is suspended, from there to that of the
        adoption, and from there to the next token.
        """
        moved = self.moved
        times_s = [moved.last_s, moved.suspended_s, moved.adopted_s, moved.next_s]
        return {
            "tokens": self.tokens,
            "way": moved.way,
            "had_tokens": moved.num_tokens,
            "outcome": moved.outcome,
            "downtime_ms": round(self.downtime_ms, 2),
            "parts_ms": (np.diff(times_s) * 1e3).round(2).tolist() if moved.adopted_s > 0 else None,
        }


@dataclass(frozen=True, slots=True)
class Row:
    tokens: int
    way: str
    moves: int
    downtime_ms_median: float
    downtime_ms_p90: float
    downtime_ms_p99: float
    downtime_ms_max: float
    step_ms: float  # median of the other gaps
    step_ms_p99: float
    copy_ms: float  # median time from the beginning of a move to the news that it is suspended
    hand_over_ms: float  # median time from there to the news of the adoption


def row_of(tokens: int, way: str, trials: list[Trial]) -> Row:
    """Of the moves that were done."""
    done = [each.moved for each in trials]
    suspended_s = np.array([each.suspended_s for each in done])
    adopted_s = np.array([each.adopted_s for each in done])
    gaps_s = np.concatenate([each.gaps_s for each in trials])
    figures = [
        *np.percentile([each.downtime_ms for each in trials], list(PERCENTILES.values())),
        *np.percentile(gaps_s, [50, 99]) * 1e3,
        np.median(suspended_s - [each.began_s for each in done]) * 1e3,
        np.median(adopted_s - suspended_s) * 1e3,
    ]
    return Row(tokens, way, len(done), *(round(float(np.nan_to_num(figure)), 1) for figure in figures))


def summary(trials: list[Trial], rounds: list[dict[str, float]]) -> dict[str, Any]:
    """`rounds`: what the instances did with moves and without (`migration.neighbours`)."""
    done = [each for each in trials if each.moved.outcome == "done"]
    rows = [
        row_of(tokens, way, [each for each in done if (each.tokens, each.moved.way) == (tokens, way)])
        for tokens in sorted({each.tokens for each in done})
        for way in WAYS
    ]
    return {
        "rows": [asdict(row) for row in rows],
        "downtime_ms": {
            way: {str(row.tokens): _percentiles(row) for row in rows if row.way == way} for way in WAYS
        },
        "step_ms": {str(row.tokens): row.step_ms for row in rows if row.way == WAYS[0]},
        "slowdown": {
            **_spread([each["without"] / each["with"] - 1 for each in rounds]),
            "processor_time": _spread(
                [each["with_token_ms"] / each["without_token_ms"] - 1 for each in rounds]
            ),
            "rounds": rounds,
        },
        "outcomes": {
            way: dict(Counter(each.moved.outcome for each in trials if each.moved.way == way)) for way in WAYS
        },
        "moves": [each.as_json() for each in trials],
    }


def _spread(values: list[float]) -> dict[str, float]:
    """`error` is the standard error of the mean."""
    error = float(np.std(values) / np.sqrt(len(values)))
    found = {"median": float(np.median(values)), "mean": float(np.mean(values)), "error": error}
    found |= {"least": min(values), "most": max(values)}
    return {name: round(value, 4) for name, value in found.items()}


def _percentiles(row: Row) -> dict[str, float]:
    return {name: getattr(row, f"downtime_ms_{name}") for name in PERCENTILES}


def draw(path: Path, result: dict[str, Any]) -> None:
    """Median downtime by length, a line for each way; the bars reach to P99."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for way, by_length in result["downtime_ms"].items():
        lengths = [int(length) for length in by_length]
        medians = [max(each["median"], LEAST_MS) for each in by_length.values()]
        upper = [max(each["p99"] - each["median"], 0) for each in by_length.values()]
        axis.errorbar(lengths, medians, [[0] * len(upper), upper], marker="o", capsize=3, label=way)
    axis.plot(lengths, list(result["step_ms"].values()), ":", color="gray", label="one step")
    axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel="downtime, ms (median, P99)")
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axis.minorticks_off()
    axis.legend()
    figure.savefig(path, dpi=120)


def say(result: dict[str, Any]) -> None:
    """The table last."""
    downtime_ms, slowdown, checked = result["downtime_ms"], result["slowdown"], result["checked"]
    for length, live in downtime_ms[WAYS[0]].items():
        steps = live["median"] / result["step_ms"][length]
        ratios = [downtime_ms[way][length]["median"] / max(live["median"], LEAST_MS) for way in WAYS[1:]]
        longer = ", ".join(f"{way} {ratio:.1f} times" for way, ratio in zip(WAYS[1:], ratios, strict=True))
        print(f"{length} tokens: with blocks {live['median']} ms, {steps:.2f} steps; {longer} as long")
    for what, shares in (
        ("slower", slowdown),
        ("more processor time of a token", slowdown["processor_time"]),
    ):
        print(
            f"others with one move a second: {what} by {shares['mean']:.1%} ± {shares['error']:.1%}"
            f" (rounds: {shares['least']:.1%} to {shares['most']:.1%})"
        )
    for killed in result["losses"]:
        print(
            f"an instance is killed: the others' longest gap is {killed['longest_after_ms']} ms in the second"
            f" after it, {killed['longest_before_ms']} ms in the one before; a step {killed['step_ms']} ms"
        )
    print(f"outcomes: {result['outcomes']}")
    print(f"{checked['answers']} answers have the same {checked['tokens']} tokens without moves and deaths")
    print(table(result["rows"]))
