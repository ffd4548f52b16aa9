"""Writes `gapless.toml` (`make settings`) and the list of settings for --help from the declarations."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import Any

from python_backends.settings.all_settings import TITLES, Settings
from python_backends.settings.folders import FILE, ROOT
from python_backends.settings.setting import allowed

WIDTH = 110
COMMENT_AT = 32  # the column of comments
HEAD = """\
# Every setting of Gapless, with its default. `make settings` writes this file from the declarations in
# python_backends/settings; the values can be changed here. `make serve` reads it. The environment overrides
# it (GAPLESS_ENGINE__SLOTS=64), and the command line overrides both: MODEL=…, DEVICE=…, DTYPE=…, SLOTS=… and
# SET="section.field=value …".
"""


def gapless_toml() -> str:
    return HEAD + "".join(_section_lines(section) for section in dataclasses.fields(Settings))


def help_text() -> str:
    """Returns a paragraph for each setting: name, default, allowed values, meaning."""
    return "\n".join(
        _help(section.name, field) for section in dataclasses.fields(Settings) for field in _fields(section)
    )


def _fields(section: dataclasses.Field[Any]) -> tuple[dataclasses.Field[Any], ...]:
    assert isinstance(section.default_factory, type)
    return dataclasses.fields(section.default_factory)


def _section_lines(section: dataclasses.Field[Any]) -> str:
    title = f"[{section.name}]"
    if section.name in TITLES:
        title = f"{title:{COMMENT_AT - 1}} # {TITLES[section.name]}"
    return "\n".join(["", title, *map(_line, _fields(section)), ""])


def _line(field: dataclasses.Field[Any]) -> str:
    """Returns the setting with its meaning in as many lines as needed."""
    assigned = f"{field.name} = {_value(field.default)}"
    lines = textwrap.wrap(allowed(field).meaning, WIDTH - COMMENT_AT, break_on_hyphens=False)
    first = f"{assigned:{COMMENT_AT - 1}} # {lines[0]}"
    return "\n".join([first, *(f"{'':{COMMENT_AT}}# {line}" for line in lines[1:])])


def _value(value: Any) -> str:
    return json.dumps(value)


def _help(section: str, field: dataclasses.Field[Any]) -> str:
    what = allowed(field)
    limits = f" ({what.text})" if what.text and not what.choices else ""
    return f"{section}.{field.name} = {_value(field.default)}{limits}\n" + textwrap.indent(
        textwrap.fill(what.meaning, 92, break_on_hyphens=False), " " * 8
    )


if __name__ == "__main__":
    (ROOT / FILE).write_text(gapless_toml())
