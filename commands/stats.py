"""How good predicted lengths were, from the request log: tables by stage and by instruction, a picture, and
what was learned when.

    gapless stats [--settings FILE] [--set SECTION.FIELD=VALUE] [--last 5000]
    [--plot stats.svg] [--json PATH]

Stages: *text*, before the prompt is computed; *prompt*, from the hidden state at its end; *128*, *256*, …,
from those of the answer when it had so many tokens, of longer answers only. By instruction, each answer
counts with the last stage before its first token. Reads while a server runs, or without one. Instructions
have their texts only where prompts are kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from commands.logged_answers import HALF, Logged, StageRow, as_json, logged, stage_rows
from commands.model import located
from python_backends.nouns.request import QUANTILE_LEVELS
from python_backends.prediction.lengths import LEVELS
from python_backends.prediction.place import directory_of
from python_backends.prediction.request_log import FILE, RequestLog, teaches
from python_backends.prediction.versions import Learned, Version, current
from python_backends.settings import SettingsError, add_arguments, of_command_line

MAX_INSTRUCTIONS = 20
WIDE = 160  # columns of what is no terminal
NINETY = QUANTILE_LEVELS.index(0.9)


@dataclass(frozen=True, slots=True)
class Row:
    instruction: str
    answers: int
    learned: float  # share that was predicted by what was learned, not by recent history
    length: float
    error: float  # mean, absolute, of the predicted median, in tokens
    wrong: float  # share of which `teaches` is true: so far off that it is learned from
    covered: tuple[float, ...]  # at LEVELS


def outcomes(answers: Sequence[Logged]) -> list[Logged]:
    """Those with a prediction before their first token. Without those that were cut short: their true lengths
    are unknown.
    """
    return [each for each in answers if each.ended and each.is_predicted]


def row(name: str, group: Sequence[Logged]) -> Row:
    lengths, said = (
        np.array(each) for each in zip(*((a.length, a.before.median) for a in group), strict=True)
    )
    covered = (lengths[:, None] <= np.stack([each.before.quantiles for each in group])).mean(axis=0)
    return Row(
        name,
        len(group),
        float(np.mean([each.before.version > 0 for each in group])),
        float(lengths.mean()),
        float(np.abs(said - lengths).mean()),
        float(np.mean([teaches(each.before.mean, each.length) for each in group])),
        tuple(covered.tolist()),
    )


def rows(found: Sequence[Logged]) -> list[Row]:
    """A row for all answers, then one for each of the most frequent instructions."""
    groups: defaultdict[str, list[Logged]] = defaultdict(list)
    for each in found:
        groups[each.instruction].append(each)
    frequent = sorted(groups.items(), key=lambda item: -len(item[1]))[:MAX_INSTRUCTIONS]
    return [row("all", found), *(row(name, group) for name, group in frequent)] if found else []


def table(made: Sequence[Row]) -> Table:
    drawn = Table(title="predicted lengths; covered: answers not longer than the quantile")
    drawn.add_column("instruction", overflow="fold")
    for name in ("answers", "learned", "length", "error", "wrong", "covered\n0.5", "covered\n0.9"):
        drawn.add_column(name, justify="right", no_wrap=True)
    for each in made:
        numbers = [f"{each.answers}", f"{each.learned:.0%}", f"{each.length:.0f}", f"{each.error:.1f}"]
        shares = [f"{share:.0%}" for share in (each.wrong, each.covered[HALF], each.covered[NINETY])]
        name = "".join(letter if letter.isprintable() else " " for letter in each.instruction[:60])
        drawn.add_row(Text(name), *numbers, *shares, end_section=each.instruction == "all")
    return drawn


def by_stage(made: Sequence[StageRow]) -> Table:
    drawn = Table(title="predicted lengths, by stage")
    drawn.add_column("stage")
    covered = ("covered\n0.5", "covered\n0.9")
    for name in ("answers", "length", "error", "of the\nmean", "rank\ncorrelation", *covered):
        drawn.add_column(name, justify="right", no_wrap=True)
    for each in made:
        numbers = [f"{value:.1f}" for value in (each.error, each.error_of_mean)]
        shares = [f"{each.covered[level]:.0%}" for level in (HALF, NINETY)]
        correlation = "-" if math.isnan(each.rank_correlation) else f"{each.rank_correlation:.2f}"
        drawn.add_row(each.stage, f"{each.answers}", f"{each.length:.0f}", *numbers, correlation, *shares)
    return drawn


def learned(what: Learned, version: Version | None) -> str:
    if version is None:
        return f"{what}: nothing has been learned yet"
    at = datetime.datetime.fromtimestamp(version.learned_at_s).astimezone()
    return (
        f"{what}: version {version.number}, learned {at:%Y-%m-%d %H:%M:%S} from {version.num_observations}"
        f" answers in {version.fit_s:.1f} s" + (f", encoder {version.encoder}" if version.encoder else "")
    )


def write_plot(path: Path, found: Sequence[Logged], made: Sequence[Row]) -> None:
    """Left: covered share against quantile level, for all and for each instruction. Middle: predicted and
    true lengths. Right: the error over time.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4))
    left.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    for each in made[1:]:
        left.plot(LEVELS, each.covered, color="tab:blue", alpha=0.3, linewidth=0.8)
    left.plot(LEVELS, made[0].covered, "o-", color="tab:blue", label="all (pale: by instruction)")
    left.set(xlabel="promised", ylabel="covered", xlim=(0, 1), ylim=(0, 1))
    left.legend()
    said, lengths = (
        np.array(each) for each in zip(*((a.before.median, a.length) for a in found), strict=True)
    )
    middle.loglog(np.maximum(said, 1), np.maximum(lengths, 1), ".", alpha=0.4, markersize=3)
    ends = [1, max(2.0, said.max(), lengths.max())]
    middle.plot(ends, ends, color="grey", linewidth=0.8)
    middle.set(xlabel="predicted median, tokens", ylabel="length, tokens")
    errors = np.abs(said - lengths)
    width = max(1, len(errors) // 50)
    smooth = np.convolve(errors, np.ones(width) / width, "valid")
    right.plot([datetime.datetime.fromtimestamp(each.at_s) for each in found[width - 1 :]], smooth)
    right.set(ylabel=f"absolute error, tokens (mean of {width})", ylim=(0, None))
    figure.autofmt_xdate()
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)


def write_json(where: str, answers: Sequence[Logged]) -> None:
    """Raises OSError."""
    text = json.dumps(as_json(answers))
    if where == "-":
        print(text)
    else:
        Path(where).write_text(text + "\n", "utf-8")


def command_parser() -> argparse.ArgumentParser:
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
    parser.add_argument(
        "--json", metavar="PATH", help="write the logged answers and their predictions there; -: print them"
    )
    return parser


def main() -> int:
    parser = command_parser()
    asked = parser.parse_args()
    if asked.last < 1:
        parser.error(f"--last {asked.last}: must be at least 1")
    try:
        directory = directory_of(located(of_command_line(asked)))
        log = RequestLog(directory)
        answers = logged(log, asked.last)
        log.close()
        if asked.json:
            write_json(asked.json, answers)
    except BrokenPipeError:  # who reads what is printed has left: `commands.__main__`
        raise
    except (SettingsError, OSError, sqlite3.Error) as error:
        print(
            f"no statistics: there is no log that can be read in {directory / FILE}"
            if isinstance(error, sqlite3.Error)
            else error,
            file=sys.stderr,
        )
        return 1
    if asked.json == "-":
        return 0
    found = outcomes(answers)
    made = rows(found)
    is_wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(width=WIDE if is_wide else None)
    for each in Learned:
        console.print(learned(each, current(directory, each)))
    if not made:
        console.print("no predicted answer has ended yet")
        return 0
    console.print(by_stage(stage_rows(answers)))
    console.print(table(made))
    return drawn(asked.plot or directory / "stats.svg", found, made, is_wanted=asked.plot is not None)


def drawn(path: Path, found: Sequence[Logged], made: Sequence[Row], is_wanted: bool) -> int:
    """Returns 1 where there is no picture, but not where matplotlib is missing and none was asked for."""
    try:
        write_plot(path, found, made)
    except ImportError:
        print("no picture: `pip install matplotlib` brings what draws it", file=sys.stderr)
        return int(is_wanted)
    except (OSError, ValueError) as error:  # no such directory, or no such kind of picture
        print(f"no picture: {error}", file=sys.stderr)
        return 1
    print(f"picture: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
