"""Declares a setting: default, allowed values and meaning, in one place.

`gapless.toml` and --help are written from the declarations. Tested in tests/pure/test_house.py.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bool, int, float, str)


class SettingsError(ValueError):
    """A setting is wrong. The message names it, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The allowed values: `least` to `most`, both included (None: any), and only `choices` (empty: any)."""

    meaning: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The allowed values as text for a message; empty if all are."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return f"between {self.least} and {self.most}" if self.least is not None else ""

    def allows(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        return self.least is None or self.most is None or bool(self.least <= value <= self.most)


def setting(
    default: T,
    meaning: str,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
) -> T:
    """Returns a field of a section. `meaning` ends without a full stop."""
    metadata = {"allowed": Allowed(meaning, least, most, choices)}
    field: Any = dataclasses.field(default=default, metadata=metadata)
    return typing.cast(T, field)


def allowed(field: dataclasses.Field[Any]) -> Allowed:
    return typing.cast(Allowed, field.metadata["allowed"])
