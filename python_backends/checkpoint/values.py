"""Fields of a configuration, read one by one: each of the right type and range, or refused by its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from python_backends.checkpoint.source import CheckpointError


class Values:
    """`table`: what the file `path` says; `names`: what it calls fields that have another name there."""

    def __init__(
        self, path: Path, table: Mapping[str, Any], names: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.path, self.table, self._names = path, table, names

    def name(self, name: str) -> str:
        """The file's own; an error names it."""
        return self._names.get(name, name)

    def get(self, name: str) -> Any:
        return self.table.get(self.name(name))

    def refusal(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {why}")

    def whole(self, name: str, least: int = 1, default: int | None = None) -> int:
        """`default` where the file says nothing, or null; without one the field must be there."""
        value = self.get(name)
        if value is None:
            if default is None:
                raise self.refusal(f"there is no {self.name(name)}")
            return default
        return self.checked(self.name(name), value, least)

    def checked(self, name: str, value: Any, least: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.refusal(f"{name} = {_shown(value)}: must be a whole number")
        if value < least:
            raise self.refusal(f"{name} = {value}: must be at least {least}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.refusal(f"{name} = {_shown(value)}: must be a number")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if not isinstance(value, bool | None):
            raise self.refusal(f"{name} = {_shown(value)}: must be true or false")
        return bool(value)

    def one_of(self, name: str, value: Any, known: tuple[str, ...]) -> str:
        if not isinstance(value, str) or value not in known:
            raise self.refusal(f"{name} {_shown(value, plain=True)}: this engine computes {', '.join(known)}")
        return value


def _shown(value: Any, plain: bool = False) -> str:
    text = str(value) if plain else repr(value)
    return f"{' '.join(text.split()):.100}"
