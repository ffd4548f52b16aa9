"""Reads values of a request's fields: from Triton's tensors (numpy, with any number of dimensions of 1,
strings as bytes) or from plain Python values.

Each function returns one field as a plain Python value in its range, or raises RefusedError, which names the
field, the value and the limit. Called by `fields`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids, RefusedError, TooLongError

MAX_SHOWN = 40  # characters of a value in a refusal

Fields = Mapping[str, Any]


def number(fields: Fields, name: str, low: float, high: float, place: str = "") -> float:
    """`place` is what the error message has behind the name."""
    value = plain(name, fields[name])
    if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
        raise RefusedError(
            f"{name}{place} = {shown(value)}: must be a finite number between {low:g} and {high:g}"
        )
    return float(value)


def numbers(fields: Fields, name: str, low: float, high: float, longest: float = math.inf) -> list[float]:
    """Returns one row of at most `longest` numbers."""
    items = _row(name, fields[name], longest)
    return [number({name: item}, name, low, high, f"[{i}]") for i, item in enumerate(items)]


def integer(fields: Fields, name: str, low: float, high: float) -> int:
    value = plain(name, fields[name])
    if type(value) is not int or not low <= value <= high:
        raise RefusedError(_no_whole_number(name, value, low, high))
    return value


def integers(fields: Fields, name: str, low: float, high: float, longest: float = math.inf) -> list[int]:
    """Returns one row of at most `longest` whole numbers, which are ids."""
    items = _row(name, fields[name], longest, "ids")
    for i, item in enumerate(items):
        if type(item) is not int or not low <= item <= high:
            raise RefusedError(_no_whole_number(f"{name}[{i}]", item, low, high))
    return items


def ids(fields: Fields, name: str, most: int) -> Ids:
    """Returns one row of token ids, a copy. It may be long: an array is checked as a whole."""
    value = fields[name]
    if not isinstance(value, np.ndarray) or value.dtype.kind != "i":
        return np.array(integers(fields, name, 0, most), np.int32)
    _check_row(name, value)
    items = value.ravel()
    wrong = np.flatnonzero((items < 0) | (items > most))
    if len(wrong):
        raise RefusedError(_no_whole_number(f"{name}[{wrong[0]}]", int(items[wrong[0]]), 0, most))
    return items.astype(np.int32)


def _no_whole_number(name: str, value: Any, low: float, high: float) -> str:
    """Triton cuts a JSON number to 32 bits before it comes here: of what was cut, only negative numbers can
    be seen.
    """
    is_cut = type(value) is int and -(1 << 31) <= value < -(1 << 30)
    hint = f"; over HTTP, a number above {(1 << 31) - 1} arrives cut to 32 bits" if is_cut else ""
    return f"{name} = {shown(value)}: must be a whole number between {low} and {high}{hint}"


def flag(fields: Fields, name: str) -> bool:
    value = plain(name, fields[name])
    if type(value) is not bool:
        raise RefusedError(f"{name} = {shown(value)}: must be true or false")
    return value


def string(fields: Fields, name: str, max_bytes: float, limit: str = "") -> str:
    """Returns a string of at most `max_bytes`. `limit`, of a part of the prompt, is text for the error
    message: where `max_bytes` comes from. Bytes that are too long are not decoded.
    """
    value = _single(name, fields[name])
    if isinstance(value, str | bytes):
        size = len(value) if isinstance(value, bytes) else len(unicode(name, value).encode())
        if size > max_bytes:
            error = TooLongError if limit else RefusedError
            raise error(f"{name} = {size} bytes: must be at most {max_bytes}{limit}")
    value = _decoded(name, value)
    if type(value) is not str:
        raise RefusedError(f"{name} = {shown(value)}: must be a string")
    return value


def strings(fields: Fields, name: str, most: int) -> list[str]:
    """Returns one row of at most `most` strings. Empty ones are left out: clients fill up rows of a batch
    with them.
    """
    items = [item for item in _row(name, fields.get(name, [])) if item not in ("", b"")]
    if len(items) > most:
        raise RefusedError(f"{name} = {len(items)} words: must be at most {most}")
    items = [_decoded(name, item) for item in items]
    odd = [item for item in items if type(item) is not str]
    if odd:
        raise RefusedError(f"{name} = {shown(odd[0])}: must be strings")
    return items


def row(name: str, value: Any, longest: float) -> list[Any]:
    """Returns the at most `longest` values of a list, strings decoded."""
    return [_decoded(name, item) for item in _row(name, value, longest)]


def _row(name: str, value: Any, longest: float = math.inf, what: str = "values") -> list[Any]:
    """Strings are not decoded. A list that is too long is not read: an item takes a microsecond, and a
    request may have hundreds of millions.
    """
    if isinstance(value, np.ndarray):
        _check_row(name, value)
        value = value.ravel()
    items = value if isinstance(value, np.ndarray | list | tuple) else [value]
    if len(items) > longest:
        raise RefusedError(f"{name} = {len(items)} {what}: must be at most {longest}")
    return list(items.tolist() if isinstance(items, np.ndarray) else items)


def _check_row(name: str, value: NDArray[Any]) -> None:
    if value.ndim > 1 and value.size != value.shape[-1]:
        raise RefusedError(f"{name} has the shape {list(value.shape)}: one row is allowed")


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
