"""The chat template of a directory: in one of three files, as a text or as several with names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from python_backends.checkpoint.source import CheckpointError
from python_backends.checkpoint.tables import read_table


def find_template(directory: Path, texts: Mapping[str, Any]) -> tuple[str | None, Path | None]:
    """The template and its file, (None, None) if there is none; `texts`: of tokenizer_config.json. Raises
    CheckpointError.
    """
    path = directory / "chat_template.jinja"
    if path.is_file():
        return _jinja(path), path
    for path, table in (
        (directory / "tokenizer_config.json", texts),
        (directory / "chat_template.json", read_table(directory / "chat_template.json")),
    ):
        if table.get("chat_template"):
            return _template_of(path, table["chat_template"]), path
    return None, None


def _template_of(path: Path, written: Any) -> str:
    if isinstance(written, list):
        written = {entry.get("name"): entry.get("template") for entry in written if isinstance(entry, dict)}
    if isinstance(written, dict):
        names = ", ".join(map(str, written)) or "none"
        if "default" not in written:
            raise CheckpointError(f"{path}: chat_template has no template named default (it has: {names})")
        written = written["default"]
    if not isinstance(written, str):
        raise CheckpointError(f"{path}: chat_template must be a text, not {type(written).__name__}")
    return written


def _jinja(path: Path) -> str:
    try:
        source = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not source.strip():
        raise CheckpointError(f"{path}: is empty")
    return source
