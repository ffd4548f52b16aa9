"""Reads the settings: the defaults, then `gapless.toml`, then the environment, then the command line. A later
source overrides an earlier one.

A variable GAPLESS_SECTION__FIELD of the environment is the setting section.field. The launcher writes the
result to the run directory, and every process reads it back from there. A wrong setting raises SettingsError
with its name, its value and what is allowed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from python_backends.settings.all_settings import BUNDLED, Settings
from python_backends.settings.folders import FILE, IS_INSTALLED, configuration
from python_backends.settings.setting import Allowed, SettingsError, allowed

RENAMED = {
    "cluster.min_instances": "cluster.instances",
    "engine.fused_layers": "engine.cpp_layers",
    "finetuning.tpot_ms": "scheduling.late_token_ms",
    "tensorrt_llm.adapters": "adapters.directory",
}
GONE = {("engine.kind", "openvino"): "auto"}  # a value, and what to write now
PATHS = {
    "adapters": ("directory",),
    "finetuning": ("directory",),
    "front": ("directory", "api_keys", "tls_certificate", "tls_key"),
    "model": ("directory",),
    "prediction": ("directory", "encoder"),
    "server": ("model_repository",),
}
OR_NAMES = ("model.directory", "prediction.encoder")  # these may be names of others
VARIABLE = re.compile(r"GAPLESS_([A-Z_]+?)__([A-Z_0-9]+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `of_command_line` reads."""
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help=f"those of the server; default: {FILE} here, or in ~/.config/gapless"
        if IS_INSTALLED
        else f"those of the server; default: {FILE}",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        dest="overrides",
        help="one setting",
    )
    parser.add_argument(
        "--sets",
        action="extend",
        type=_words,
        default=argparse.SUPPRESS,
        metavar="SETTINGS",
        dest="overrides",
        help="several: 'engine.slots=4 \"model.directory=/my model\"'",
    )


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:  # a quote is not closed
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


def of_command_line(asked: argparse.Namespace) -> Settings:
    """The settings by the command line and the environment of this process. Raises SettingsError."""
    path = asked.settings or configuration(os.environ)
    return load(path, dict(item.partition("=")[::2] for item in asked.overrides), os.environ)


def load(
    path: Path | None,
    overrides: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Reads the settings. `path` is a TOML file, or None; `overrides` are texts by section.field. Raises
    SettingsError.
    """
    table = _of_file(path) if path else {}
    for name, text in {**_of_environment(environment or {}), **(overrides or {})}.items():
        section, _, field = name.partition(".")
        table.setdefault(section, {})[field] = _placed(name, _parse(name, text), Path.cwd())
    return _settings(table)


def _of_file(path: Path) -> dict[str, Any]:
    """Raises SettingsError."""
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:  # ValueError: not TOML, or not UTF-8
        raise SettingsError(f"{path}: {error}") from error
    _check_sections(table)
    return {
        section: {
            field: _placed(f"{section}.{field}", value, path.absolute().parent)
            for field, value in values.items()
        }
        for section, values in table.items()
    }


def _placed(name: str, value: Any, folder: Path) -> Any:
    """In an installed Gapless a relative path that a user gives begins in `folder`: that of the file, or the
    one where the command was given. A default, and a word that is no path, stay as they are.
    """
    section, _, field = name.partition(".")
    if not (IS_INSTALLED and field in PATHS.get(section, ()) and isinstance(value, str)):
        return value
    if value in ("", BUNDLED, getattr(getattr(Settings(), section), field)):
        return value
    path = folder / value
    return str(path) if path.exists() or name not in OR_NAMES else value


def dump(settings: Settings, path: Path) -> None:
    path.write_text(json.dumps(dataclasses.asdict(settings), indent=1))


def read_settings(path: Path) -> Settings:
    """Reads the settings that `dump` wrote."""
    return _settings(json.loads(path.read_text()))


def _of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the values by section.field. Variables without two underscores are not settings."""
    found = ((VARIABLE.fullmatch(name), text) for name, text in environment.items())
    return {f"{match[1]}.{match[2]}".lower(): text for match, text in found if match}


def _check_sections(table: dict[str, Any]) -> None:
    """Raises SettingsError if something at the top of a file is not one of our sections."""
    sections = typing.get_type_hints(Settings)
    for section, values in table.items():
        if section not in sections or not isinstance(values, dict):
            raise SettingsError(f"{section}: must be a section, one of {', '.join(sections)}")


def _settings(table: dict[str, dict[str, Any]]) -> Settings:
    sections = {
        section: {field: _checked(f"{section}.{field}", value) for field, value in values.items()}
        for section, values in table.items()
    }
    types = typing.get_type_hints(Settings)
    return Settings(**{section: types[section](**values) for section, values in sections.items()})


def _declared(name: str) -> tuple[type[Any], Allowed]:
    """The type and the allowed values of a setting. Raises SettingsError if there is no such setting."""
    section, _, field = name.partition(".")
    sections = typing.get_type_hints(Settings)
    if name in RENAMED:
        raise SettingsError(f"{name} is called {RENAMED[name]} now")
    if section not in sections:
        raise SettingsError(f"unknown setting {name}; the sections are {', '.join(sections)}")
    fields = {each.name: each for each in dataclasses.fields(sections[section])}
    if field not in fields:
        raise SettingsError(f"unknown setting {name}; there are {', '.join(fields)}")
    return typing.get_type_hints(sections[section])[field], allowed(fields[field])


def _checked(name: str, value: Any) -> Any:
    wanted, limits = _declared(name)
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise SettingsError(f"{name} = {value!r}: must be of type {wanted.__name__}")
    if (now := GONE.get((name, value))) is not None:
        raise SettingsError(f"{name} = {value!r}: does not exist any more; write {now!r}")
    if not limits.allows(value):
        raise SettingsError(f"{name} = {value!r}: must be {limits.text}")
    return value


def _parse(name: str, text: str) -> Any:
    wanted, _ = _declared(name)
    if wanted is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return wanted(text)
    except ValueError as error:
        raise SettingsError(f"{name} = {text!r}: must be of type {wanted.__name__}") from error
