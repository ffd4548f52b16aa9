"""The chat template of a directory: in one of three files, as a text or as several with names. One for chats
with tools, which transformers takes for these, becomes a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from python_backends.checkpoint.source import CheckpointError
from python_backends.checkpoint.tables import read_table

FOR_TOOLS = "tool_use"  # its name
FOR_TOOLS_FILE = f"additional_chat_templates/{FOR_TOOLS}.jinja"


def find_template(directory: Path, texts: Mapping[str, Any]) -> tuple[str | None, Path | None]:
    """The template and its file, (None, None) if there is none; `texts`: of tokenizer_config.json. Raises
    CheckpointError.
    """
    path = directory / "chat_template.jinja"
    if path.is_file():
        other = directory / FOR_TOOLS_FILE
        return joined(_jinja(path), _jinja(other) if other.is_file() else ""), path
    for path, table in (
        (directory / "tokenizer_config.json", texts),
        (directory / "chat_template.json", read_table(directory / "chat_template.json")),
    ):
        if table.get("chat_template"):
            return _template_of(path, table["chat_template"]), path
    return None, None


def joined(default: str, for_tools: str) -> str:
    """One template that writes chats with tools by the second, if there is one."""
    if not for_tools.strip():
        return default
    default, for_tools = (text.removesuffix("\n") for text in (default, for_tools))  # as jinja ends a text
    return f"{{% if tools +%}}{for_tools}{{%+ else +%}}{default}{{%+ endif %}}"


def _template_of(path: Path, written: Any) -> str:
    for_tools = ""
    if isinstance(written, list):
        written = {entry.get("name"): entry.get("template") for entry in written if isinstance(entry, dict)}
    if isinstance(written, dict):
        names = ", ".join(map(str, written)) or "none"
        if "default" not in written:
            raise CheckpointError(f"{path}: chat_template has no template named default (it has: {names})")
        written, for_tools = written["default"], written.get(FOR_TOOLS) or ""
    for text in (written, for_tools):
        if not isinstance(text, str):
            raise CheckpointError(f"{path}: chat_template must be a text, not {type(text).__name__}")
    return joined(written, for_tools)


def _jinja(path: Path) -> str:
    try:
        source = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not source.strip():
        raise CheckpointError(f"{path}: is empty")
    return source
