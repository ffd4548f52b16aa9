"""How good predicted lengths were, from the request log: a table by instruction, a calibration plot, and when
a forest was learned.

    python -m commands.stats [--settings FILE] [--set SECTION.FIELD=VALUE] [--last 5000]
    [--plot stats.svg]

Reads while a server runs, or without one. Instructions have their texts only where prompts are kept.
"""

from __future__ import annotations

import argparse
import datetime
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from commands.model import located
from python_backends.nouns.request import QUANTILE_LEVELS, Floats
from python_backends.prediction.lengths import LEVELS
from python_backends.prediction.place import directory_of
from python_backends.prediction.request_log import FILE, RequestLog, teaches
from python_backends.prediction.versions import Version, current
from python_backends.settings import SettingsError, add_arguments, of_command_line

COLUMNS = "at_s, instruction, num_output_tokens, ended, mean, quantiles, version, instruction_text"
MAX_INSTRUCTIONS = 20
HALF, NINETY = QUANTILE_LEVELS.index(0.5), QUANTILE_LEVELS.index(0.9)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """An answer that ended by itself, and its prediction."""

    at_s: float
    instruction: str
    length: int
    mean: float
    quantiles: Floats
    version: int  # 0: predicted by history


@dataclass(frozen=True, slots=True)
class Row:
    instruction: str
    answers: int
    by_forest: float  # share that the forest predicted
    length: float
    error: float  # mean, absolute, in tokens
    wrong: float  # share of which `teaches` is true: so far off that it is learned from
    covered: tuple[float, ...]  # at LEVELS


def outcomes(log: RequestLog, last: int) -> list[Outcome]:
    """Answers with a prediction, oldest first. Without those that were
    cut short: their true lengths are unknown.
    """
    found = []
    for at_s, number, length, ended, mean, quantiles, version, text in reversed(log.rows(COLUMNS, last)):
        if ended and mean is not None:
            name = text or f"#{number:016x}"[:9]
            found.append(Outcome(at_s, name, length, mean, np.frombuffer(quantiles, "<f4"), version))
    return found


def row(name: str, group: Sequence[Outcome]) -> Row:
    lengths, means = np.array([each.length for each in group]), np.array([each.mean for each in group])
    covered = (lengths[:, None] <= np.stack([each.quantiles for each in group])).mean(axis=0)
    return Row(
        name,
        len(group),
        float(np.mean([each.version > 0 for each in group])),
        float(lengths.mean()),
        float(np.abs(means - lengths).mean()),
        float(np.mean([teaches(each.mean, each.length) for each in group])),
        tuple(covered.tolist()),
    )


def rows(found: Sequence[Outcome]) -> list[Row]:
    """A row for all answers, then one for each of the most frequent instructions."""
    groups: defaultdict[str, list[Outcome]] = defaultdict(list)
    for each in found:
        groups[each.instruction].append(each)
    frequent = sorted(groups.items(), key=lambda item: -len(item[1]))[:MAX_INSTRUCTIONS]
    return [row("all", found), *(row(name, group) for name, group in frequent)] if found else []


def table(made: Sequence[Row]) -> Table:
    drawn = Table(title="predicted lengths; covered: answers not longer than the quantile")
    drawn.add_column("instruction")
    for name in ("answers", "by forest", "length", "error", "wrong", "covered 0.5", "covered 0.9"):
        drawn.add_column(name, justify="right")
    for each in made:
        numbers = [f"{each.answers}", f"{each.by_forest:.0%}", f"{each.length:.0f}", f"{each.error:.1f}"]
        shares = [f"{share:.0%}" for share in (each.wrong, each.covered[HALF], each.covered[NINETY])]
        drawn.add_row(each.instruction[:60], *numbers, *shares, end_section=each.instruction == "all")
    return drawn


def learned(version: Version | None) -> str:
    if version is None:
        return "nothing has been learned yet: recent history predicts"
    at = datetime.datetime.fromtimestamp(version.learned_at_s).astimezone()
    return (
        f"version {version.number}, learned {at:%Y-%m-%d %H:%M:%S} from {version.num_observations} answers "
        f"in {version.fit_s:.1f} s, encoder {version.encoder}"
    )


def write_plot(path: Path, found: Sequence[Outcome], made: Sequence[Row]) -> None:
    """Left: covered share against quantile level, for all and for each
    instruction. Right: the error over time.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    left.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    for each in made[1:]:
        left.plot(LEVELS, each.covered, color="tab:blue", alpha=0.3, linewidth=0.8)
    left.plot(LEVELS, made[0].covered, "o-", color="tab:blue", label="all (pale: by instruction)")
    left.set(xlabel="promised", ylabel="covered", xlim=(0, 1), ylim=(0, 1))
    left.legend()
    errors = np.array([abs(each.mean - each.length) for each in found])
    width = max(1, len(errors) // 50)
    smooth = np.convolve(errors, np.ones(width) / width, "valid")
    right.plot([datetime.datetime.fromtimestamp(each.at_s) for each in found[width - 1 :]], smooth)
    right.set(ylabel=f"absolute error, tokens (mean of {width})", ylim=(0, None))
    figure.autofmt_xdate()
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--last", type=int, default=5000, help="answers, counted from the newest")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="PATH",
        help="a picture: .svg or .png; default: stats.svg next to the log",
    )
    asked = parser.parse_args()
    if asked.last < 1:
        parser.error(f"--last {asked.last}: must be at least 1")
    try:
        directory = directory_of(located(of_command_line(asked)))
        log = RequestLog(directory)
        found = outcomes(log, asked.last)
        log.close()
    except (SettingsError, OSError, sqlite3.Error) as error:
        print(
            f"no statistics: {error} ({directory / FILE})" if isinstance(error, sqlite3.Error) else error,
            file=sys.stderr,
        )
        return 1
    made = rows(found)
    console = Console()
    console.print(learned(current(directory)))
    if not made:
        console.print("no predicted answer has ended yet")
        return 0
    console.print(table(made))
    plot = asked.plot or directory / "stats.svg"
    try:
        write_plot(plot, found, made)
    except (OSError, ValueError) as error:  # no such directory, or no such kind of picture
        print(f"no picture: {error}", file=sys.stderr)
        return 1
    console.print(f"picture: {plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
