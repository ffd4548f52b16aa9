"""Reads arrays in pieces, and files of JSON lines that are there whole or not at all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

PIECE_VALUES = 1 << 18  # a quarter of a millisecond


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Of a safetensors file, in pieces: other threads go on in between. Raises OSError and ValueError."""
    try:
        with safe_open(path, "numpy") as file:
            return {name: _in_pieces(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _in_pieces(slices: Any) -> NDArray[Any]:
    shape = slices.get_shape()
    if not shape or 0 in shape:
        return np.asarray(slices[...])
    rows = max(1, PIECE_VALUES // math.prod(shape[1:]))
    found = np.empty(shape, slices[:1].dtype)
    for first in range(0, shape[0], rows):
        last = min(first + rows, shape[0])
        found[first:last] = slices[first:last]
    return found


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """A JSON line that is there whole or not at all. What a full disk or a killed process has cut off before
    is ended, so that it does not swallow this line.
    """
    append_lines(path, [line])


def append_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """As `append_line`; a full disk leaves none of them."""
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with path.open("ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        left = (b"" if file.read(1) in (b"", b"\n") else b"\n") + data
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(size)
            raise


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line. Lines that were cut off are left out."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    found = [_value(line) for line in lines[:-1]]
    return [value for value in found if isinstance(value, dict)]


def _value(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
