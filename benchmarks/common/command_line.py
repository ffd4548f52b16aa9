"""The command line that every benchmark has."""

from __future__ import annotations

import argparse
from pathlib import Path


def command_line(description: str | None, quick: str, plot: str | None = None) -> argparse.ArgumentParser:
    """Has --quick and --json, and --plot if there is something to draw. `quick` and `plot` say what these
    do; `description` is the module's docstring.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, help="also write the results here")
    if plot is not None:
        parser.add_argument("--plot", type=Path, help=plot)
    return parser
