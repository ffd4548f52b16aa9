"""Finds the model that the settings name, and prints where it lies:

    python -m commands.model --set model.directory=Qwen/Qwen2.5-0.5B-Instruct

`model.directory` is a path, or the name of a model on the hub of Hugging Face. `commands.serve` and others
call `located` before they do anything else: whatever they start reads a path.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from pathlib import Path

from python_backends.checkpoint.hub import find_model
from python_backends.checkpoint.hub_errors import HubError
from python_backends.checkpoint.model_names import read_name
from python_backends.settings import Settings, SettingsError, add_arguments, of_command_line


def located(settings: Settings) -> Settings:
    """The settings with a path in model.directory. A path that exists is taken before a name. Raises
    SettingsError.
    """
    given = settings.model.directory
    if _exists(settings.model_directory):
        return settings
    name = read_name(given)
    if name is None:
        raise SettingsError(
            f"model.directory = {given!r}: there is no such directory or file, and it is not the name of a"
            " model (ORG/NAME)"
        )
    try:
        path = find_model(name)
    except HubError as error:
        raise SettingsError(f"model.directory = {given!r}: {error}") from error
    return dataclasses.replace(settings, model=dataclasses.replace(settings.model, directory=str(path)))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # longer than a path may be, or in a directory that is closed to us
        return False


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m commands.model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    logging.basicConfig(level=logging.INFO, format="gapless: %(message)s", stream=sys.stderr)
    try:
        print(located(of_command_line(parser.parse_args())).model_directory)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
