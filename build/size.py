"""Prints the size of the code: lines of each file, and the percentiles of function lengths, so that growth is
noticed.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("python_backends", "client", "commands", "build", "models/recipe", "benchmarks", "tests")


def function_lengths(source: str) -> list[int]:
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]


def report(room: str) -> None:
    """Prints the files of one folder, largest first, and the lengths of its functions."""
    tracked = subprocess.run(
        ["git", "ls-files", f"{room}/*.py", f"{room}/*.cpp", f"{room}/*.h"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    sources = {name: (ROOT / name).read_text() for name in tracked.stdout.split()}
    lines = {name: source.count("\n") for name, source in sources.items()}
    lengths = [
        length
        for name, source in sources.items()
        if name.endswith(".py")
        for length in function_lengths(source)
    ]
    median, ninety, longest = np.percentile(lengths, [50, 90, 100]).astype(int)
    print(
        f"\n{room}: {sum(lines.values())} lines; functions in Python: median {median}, 90 % under {ninety},"
        f" longest {longest}"
    )
    for name, count in sorted(lines.items(), key=lambda item: -item[1]):
        print(f"{count:6d}  {name}")


if __name__ == "__main__":
    for name in ROOMS:
        report(name)
