"""Reads values of a request's fields: from Triton's tensors (numpy, with any number of dimensions of 1,
strings as bytes) or from plain Python values.

Each function returns one field as a plain Python value in its range, or raises RefusedError, which names the
field, the value and the limit. Called by `fields`. Tested in tests/pure/text/test_door.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from python_backends.nouns.request import RefusedError

MAX_SHOWN = 40  # characters of a value in a refusal

Fields = Mapping[str, Any]


def number(fields: Fields, name: str, low: float, high: float) -> float:
    value = plain(name, fields[name])
    if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
        raise RefusedError(f"{name} = {shown(value)}: must be a finite number between {low:g} and {high:g}")
    return float(value)


def integer(fields: Fields, name: str, low: float, high: float) -> int:
    value = plain(name, fields[name])
    if type(value) is not int or not low <= value <= high:
        raise RefusedError(f"{name} = {shown(value)}: must be a whole number between {low} and {high}")
    return value


def integers(fields: Fields, name: str, low: float, high: float) -> list[int]:
    """Returns one row of whole numbers."""
    items = _row(name, fields[name])
    for i, item in enumerate(items):
        if type(item) is not int or not low <= item <= high:
            raise RefusedError(
                f"{name}[{i}] = {shown(item)}: must be a whole number between {low} and {high}"
            )
    return items


def flag(fields: Fields, name: str) -> bool:
    value = plain(name, fields[name])
    if type(value) is not bool:
        raise RefusedError(f"{name} = {shown(value)}: must be true or false")
    return value


def string(fields: Fields, name: str, max_bytes: float, limit: str = "") -> str:
    """Returns a string of at most `max_bytes`. `limit` is text for the error message: where `max_bytes` comes
    from. Bytes that are too long are not decoded.
    """
    value = _single(name, fields[name])
    if isinstance(value, str | bytes):
        size = len(value) if isinstance(value, bytes) else len(unicode(name, value).encode())
        if size > max_bytes:
            raise RefusedError(f"{name} = {size} bytes: must be at most {max_bytes}{limit}")
    value = _decoded(name, value)
    if type(value) is not str:
        raise RefusedError(f"{name} = {shown(value)}: must be a string")
    return value


def strings(fields: Fields, name: str, most: int) -> list[str]:
    """Returns one row of at most `most` strings. Some clients send one empty string for an empty list."""
    row = _row(name, fields.get(name, []))
    if len(row) > most:
        raise RefusedError(f"{name} = {len(row)} words: must be at most {most}")
    items = [_decoded(name, item) for item in row]
    odd = [item for item in items if type(item) is not str]
    if odd:
        raise RefusedError(f"{name} = {shown(odd[0])}: must be strings")
    return [] if items == [""] else items


def _row(name: str, value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        if value.ndim > 1 and value.size != value.shape[-1]:
            raise RefusedError(f"{name} has the shape {list(value.shape)}: one row is allowed")
        return list(value.ravel().tolist())
    return list(value) if isinstance(value, list | tuple) else [value]


def plain(name: str, value: Any) -> Any:
    """Returns the one value of a field as a plain Python value."""
    return _decoded(name, _single(name, value))


def _single(name: str, value: Any) -> Any:
    """Like `plain`, but bytes are not decoded."""
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise RefusedError(f"{name} has the shape {list(value.shape)}: exactly one value is allowed")
        value = value.ravel()[0]
    return value.item() if isinstance(value, np.generic) else value


def _decoded(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise RefusedError(
                f"{name} = {shown(value)}: must be UTF-8, byte {error.start} is not"
            ) from error
    return unicode(name, value) if isinstance(value, str) else value


def unicode(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(
            f"{name} = {shown(text)}: must be Unicode, character {error.start} is half of a pair"
        ) from error
    return text


def shown(value: Any) -> str:
    """Returns a value as text for a message to the client: short, and printable everywhere."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value[: MAX_SHOWN + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
