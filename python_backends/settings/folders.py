"""Where files lie: those that Gapless brings, those that it writes, and those that a user names.

In a checkout, and in an image, all of them are below one folder. Installed by pip, the code is below the
package `gapless`, in its folder `server`; what is written and the user's settings are where XDG's base
directories say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # what it brings: code, the small model, Triton's repository
IS_INSTALLED = ROOT.name == "server" and (ROOT.parent / "py.typed").is_file()
IS_CHECKOUT = (ROOT / "Makefile").is_file()  # an image has none
FILE = "gapless.toml"


def state(environment: Mapping[str, str]) -> Path:
    """The folder below which an installed Gapless writes."""
    return _base(environment, "XDG_STATE_HOME", ".local/state")


def configuration(environment: Mapping[str, str]) -> Path | None:
    """The file with the user's settings: the one in the folder where the command was given, else the one in
    the user's directory. None: there is none, and all settings have their defaults.
    """
    if not IS_INSTALLED:
        return ROOT / FILE
    found = (Path.cwd() / FILE, _base(environment, "XDG_CONFIG_HOME", ".config") / FILE)
    return next((path for path in found if path.is_file()), None)


def _base(environment: Mapping[str, str], variable: str, default: str) -> Path:
    named = Path(environment.get(variable, ""))  # one that is relative does not count, says XDG
    return (named if named.is_absolute() else Path.home() / default) / "gapless"


WRITTEN = state(os.environ) if IS_INSTALLED else ROOT  # run/ is below it
