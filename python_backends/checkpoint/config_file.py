"""config.json and the other tables of a checkpoint. Files of strangers: they may hold anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG = "config.json"


def read_config(directory: Path) -> dict[str, Any]:
    """config.json; of a model with images and text, with what it says of the text. Raises OSError, and
    ValueError where it is no table.
    """
    config = _table((directory / CONFIG).read_text("utf-8"))
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def read_table(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or an empty one if the file is absent. Raises as `read_config`."""
    return _table(path.read_text("utf-8")) if path.is_file() else {}


def _table(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(value, dict):
        raise ValueError("must hold a JSON object")
    return value
