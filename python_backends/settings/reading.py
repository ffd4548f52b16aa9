"""Reads the settings: the defaults, then `gapless.toml`, then the environment, then the command line. A later
source overrides an earlier one.

A variable GAPLESS_SECTION__FIELD of the environment is the setting section.field. The launcher writes the
result to the run directory, and every process reads it back from there. A wrong setting raises SettingsError
with its name, its value and what is allowed. Tested in tests/pure/test_house.py.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from python_backends.settings.all_settings import Settings
from python_backends.settings.setting import SettingsError, allowed

RENAMED = {
    "engine.toy_step_ms": "toy.step_ms",
    "engine.toy_poison_token": "toy.poison_token",
    "tensorrt_llm.adapters": "adapters.directory",
    "tensorrt_llm.max_adapter_rank": "adapters.max_rank",
}
VARIABLE = re.compile(r"GAPLESS_([A-Z_]+?)__([A-Z_0-9]+)")


def load(
    path: Path, overrides: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Reads the settings. `path` is a TOML file; `overrides` are texts by section.field. Raises
    SettingsError.
    """
    try:
        table: dict[str, dict[str, Any]] = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    for name, text in {**_of_environment(environment or {}), **(overrides or {})}.items():
        section, _, field = name.partition(".")
        table.setdefault(section, {})[field] = _parse(name, text)
    return _settings(table)


def dump(settings: Settings, path: Path) -> None:
    path.write_text(json.dumps(dataclasses.asdict(settings), indent=1))


def read_settings(path: Path) -> Settings:
    """Reads the settings that `dump` wrote."""
    return _settings(json.loads(path.read_text()))


def _of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the values by section.field. Variables without two underscores are not settings."""
    found = ((VARIABLE.fullmatch(name), text) for name, text in environment.items())
    return {f"{match[1]}.{match[2]}".lower(): text for match, text in found if match}


def _settings(table: dict[str, dict[str, Any]]) -> Settings:
    sections = typing.get_type_hints(Settings)
    for section, values in table.items():
        for field in values:
            _check_name(f"{section}.{field}")
        if section not in sections:
            raise SettingsError(f"unknown section [{section}]; there are {', '.join(sections)}")
    return Settings(
        **{name: _section(name, section, table.get(name, {})) for name, section in sections.items()}
    )


def _section(name: str, section: type[Any], values: dict[str, Any]) -> Any:
    types, fields = (
        typing.get_type_hints(section),
        {field.name: field for field in dataclasses.fields(section)},
    )
    return section(
        **{
            field: _checked(f"{name}.{field}", value, types[field], fields[field])
            for field, value in values.items()
        }
    )


def _check_name(name: str) -> type[Any]:
    """Returns the type of a setting. Raises SettingsError if there is no such setting."""
    section, _, field = name.partition(".")
    sections = typing.get_type_hints(Settings)
    if name in RENAMED:
        raise SettingsError(f"{name} is called {RENAMED[name]} now")
    if section not in sections:
        raise SettingsError(f"unknown setting {name}; the sections are {', '.join(sections)}")
    types = typing.get_type_hints(sections[section])
    if field not in types:
        raise SettingsError(f"unknown setting {name}; there are {', '.join(types)}")
    wanted: type[Any] = types[field]
    return wanted


def _checked(name: str, value: Any, wanted: type[Any], field: dataclasses.Field[Any]) -> Any:
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise SettingsError(f"{name} = {value!r}: must be of type {wanted.__name__}")
    if not allowed(field).allows(value):
        raise SettingsError(f"{name} = {value!r}: must be {allowed(field).text}")
    return value


def _parse(name: str, text: str) -> Any:
    wanted = _check_name(name)
    if wanted is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return wanted(text)
    except ValueError as error:
        raise SettingsError(f"{name} = {text!r}: must be of type {wanted.__name__}") from error
