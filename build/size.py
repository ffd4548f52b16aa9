"""Prints how large the house is: lines of each file, and the percentiles of function lengths. Smallness needs somebody who looks."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("python_backends", "client", "build", "benchmarks", "tests")


def function_lengths(source: str) -> list[int]:
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]


def report(room: str) -> None:
    """Prints one room's files, largest first, and its functions' lengths."""
    sources = {path: path.read_text() for path in sorted((ROOT / room).rglob("*.py"))}
    if not sources:
        return
    lines = {path: source.count("\n") for path, source in sources.items()}
    lengths = [length for source in sources.values() for length in function_lengths(source)] or [0]
    median, ninety, longest = np.percentile(lengths, [50, 90, 100]).astype(int)
    print(f"\n{room}: {sum(lines.values())} lines; functions: median {median}, 90 % under {ninety}, longest {longest}")
    for path, count in sorted(lines.items(), key=lambda item: -item[1]):
        print(f"{count:6d}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    for name in ROOMS:
        report(name)
