"""The settings of a command line: `--settings FILE`, and `--set SECTION.FIELD=VALUE` any number of times.

Tested in tests/pure/test_house.py.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from python_backends.settings.all_settings import ROOT, Settings
from python_backends.settings.reading import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--settings", type=Path, default=ROOT / "gapless.toml", metavar="FILE", help="default: gapless.toml"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        dest="overrides",
        help="one setting",
    )


def settings_of(asked: argparse.Namespace) -> Settings:
    """The command line goes before the environment, and that before the file. Raises SettingsError."""
    overrides = dict(item.partition("=")[::2] for item in asked.overrides)
    return load(asked.settings, overrides, os.environ)
