"""Declares a setting: default, allowed values and meaning, in one place.

`gapless.toml` and --help are written from the declarations.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bool, int, float, str)
Named = TypeVar("Named")
FOLDER = "GAPLESS_FOLDER"  # the variable that names it; `make` sets it
MODULE = re.compile(r"[\w.]+:\w+")


class SettingsError(ValueError):
    """A setting is wrong. The message names it, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The allowed values: `least` to `most`, both included (None: any), and only `choices` (empty: any)."""

    meaning: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    takes_modules: bool = False  # also `module:NAME`

    @property
    def text(self) -> str:
        """The allowed values as text for a message; empty if all are."""
        if self.choices:
            return f"one of {', '.join(self.choices)}" + ", or module:NAME" * self.takes_modules
        return f"between {self.least} and {self.most}" if self.least is not None else ""

    def allows(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices or (self.takes_modules and MODULE.fullmatch(value) is not None)
        return self.least is None or self.most is None or bool(self.least <= value <= self.most)


def setting(
    default: T,
    meaning: str,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    takes_modules: bool = False,
) -> T:
    """Returns a field of a section. `meaning` ends without a full stop."""
    metadata = {"allowed": Allowed(meaning, least, most, choices, takes_modules)}
    field: Any = dataclasses.field(default=default, metadata=metadata)
    return typing.cast(T, field)


def allowed(field: dataclasses.Field[Any]) -> Allowed:
    return typing.cast(Allowed, field.metadata["allowed"])


def named(name: str, value: str, known: Mapping[str, Named], kind: type[Named]) -> Named:
    """Returns what the setting `name` names: one of the `known`, or of others. Raises SettingsError."""
    return known[value] if value in known else imported(name, value, kind)


def imported(name: str, value: str, *kinds: type[Any]) -> Any:
    """Returns what the setting `name` names by its `value`, module:NAME: one of `kinds`. The module may be in
    the folder where the server was started. Raises SettingsError.
    """
    module, _, attribute = value.partition(":")
    if (folder := os.environ.get(FOLDER)) and folder not in sys.path:
        sys.path.append(folder)  # last, so that it hides nothing of others
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a module of others may raise anything
        raise SettingsError(f"{name} = {value!r}: {type(error).__name__}: {error}") from error
    if not isinstance(found, kinds):
        wanted = " or ".join("a class" if kind is type else kind.__name__ for kind in kinds)
        raise SettingsError(f"{name} = {value!r}: must be {wanted}, not {type(found).__name__}")
    return found
