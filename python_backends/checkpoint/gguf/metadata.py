"""One field of a GGUF file's metadata at a time, as what it has to be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from python_backends.checkpoint.source import CheckpointError

NONE = 2**32 - 1  # of a token's id: what converters write for -1


class Metadata:
    """The fields of a file."""

    def __init__(self, fields: Mapping[str, Any], path: Path) -> None:
        self.path = path
        self.fields = {
            key: value for key, value in fields.items() if not (key.endswith("_token_id") and value == NONE)
        }

    def refused(self, key: str, why: str) -> CheckpointError:
        value = self.fields.get(key)
        shown = f"{type(value).__name__} of {len(value)}" if isinstance(value, list) else f"{value!r:.100}"
        return CheckpointError(f"{self.path}: {key} = {shown}: {why}")

    def missing(self, key: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {key} is missing in its metadata")

    def whole(self, key: str, default: int | None = None) -> int:
        """A number that is not negative. Without a default, it must be there."""
        value = self.fields.get(key, default)
        if value is None:
            raise self.missing(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.refused(key, "must be one whole number")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Of a number in float32 the shortest decimal, as config.json has it: 1e-06, not 9.99999997e-07."""
        value = self.fields.get(key, default)
        if value is None:
            raise self.missing(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(key, "must be one number")
        short = np.float32(value)
        return float(str(short)) if float(short) == value else float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.fields.get(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, "must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.fields.get(key, default)
        if value is None:
            raise self.missing(key)
        if not isinstance(value, str):
            raise self.refused(key, "must be a text")
        return value

    def many(self, key: str, kind: type | tuple[type, ...], length: int | None = None) -> list[Any]:
        """A list of values of a kind, empty where it is absent; `length`: it must have so many then."""
        values = self.fields.get(key, [])
        if not isinstance(values, list) or not all(issubclass(each, kind) for each in set(map(type, values))):
            names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
            raise self.refused(key, f"must be a list of {names}")
        if values and length is not None and len(values) != length:
            raise self.refused(key, f"must have {length} values")
        return values
