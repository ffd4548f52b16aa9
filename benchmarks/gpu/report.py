"""The output of `gpu`: one figure a line when it is measured, a table of all at the end, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.results_file import write_result


class LeftOutError(RuntimeError):
    """A part can't be measured here. The text says why."""


@dataclass(frozen=True, slots=True)
class Figure:
    part: str
    what: str
    value: float
    unit: str
    wanted: str = ""  # "<= 1.2" or ">= 10121": the goal, or a reference
    note: str = ""

    @property
    def verdict(self) -> str:
        if not self.wanted:
            return ""
        sign, bound = self.wanted.split()
        passed = self.value <= float(bound) if sign == "<=" else self.value >= float(bound)
        return "ok" if passed else "FAIL"

    @property
    def line(self) -> str:
        return " ".join(
            filter(
                None,
                [f"{self.verdict:4}", f"{self.part}: {self.what}", f"{self.value:.5g}", self.unit, self.note],
            )
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a part of the script."""

    part: str
    seconds: float
    error: str = ""  # its traceback, or why it was left out
    left_out: bool = False


def table(figures: Sequence[Figure], parts: Sequence[Ended]) -> str:
    lines = [("part", "figure", "value", "unit", "wanted", "", "note"), ("---",) * 7]
    lines += [
        (row.part, row.what, f"{row.value:.5g}", row.unit, row.wanted, row.verdict, row.note)
        for row in figures
    ]
    for part in parts:
        if part.error:
            said = part.error.strip().splitlines()[-1]
            lines.append(
                (
                    part.part,
                    "left out" if part.left_out else "did not end",
                    "",
                    "",
                    "",
                    "" if part.left_out else "FAIL",
                    said,
                )
            )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_json(path: Path, device: dict[str, Any], figures: Sequence[Figure], parts: Sequence[Ended]) -> None:
    result = {
        "figures": [{**asdict(figure), "verdict": figure.verdict} for figure in figures],
        "parts": [asdict(part) for part in parts],
    }
    write_result(path, result, device)
