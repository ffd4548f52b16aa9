"""Which files of a model on the hub are needed to serve it: its tables, its tokenizer, its template, and its
weights in one form.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from python_backends.checkpoint.hub_errors import HubError
from python_backends.checkpoint.templates import FOR_TOOLS_FILE
from python_backends.checkpoint.weight_files import FORMATS

INDEX = ".index.json"  # of weights in several files: which tensor is in which
TEXTS = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    FOR_TOOLS_FILE,
    "chat_template.json",
    *(form + INDEX for form in FORMATS),
)
MOST_NAMES = 8


def weights_of(names: Collection[str], directory: Path, gguf: str = "") -> list[str]:
    """The files with the weights, of those in a model. `gguf`: the one that was asked for. An index is read
    in `directory`. Raises HubError if there are none, or several to choose from.
    """
    if gguf:
        if gguf not in names:
            raise HubError(f"has no file {gguf}; it has {_listed(_gguf_files(names)) or 'no GGUF files'}")
        return [gguf]
    for form in FORMATS:
        if form in names:
            return [form]
        if form + INDEX in names:
            return _indexed(names, directory / (form + INDEX))
    files = _gguf_files(names)
    if len(files) > 1:
        raise HubError(f"has several GGUF files; add the name of one, as in ORG/NAME/{_listed(files)}")
    if not files:
        raise HubError(f"has no weights that are served: no {', '.join(FORMATS)}, and no GGUF file")
    return files


def _gguf_files(names: Collection[str]) -> list[str]:
    """Those that may be a model: not the part of one that sees images."""
    found = (name for name in names if name.endswith(".gguf") and "/" not in name)
    return sorted(name for name in found if not name.startswith("mmproj"))


def _indexed(names: Collection[str], index: Path) -> list[str]:
    try:
        table: Any = json.loads(index.read_text("utf-8"))
        files = sorted(set(table["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HubError(f"{index.name} can't be read: {type(error).__name__}: {error}") from error
    if missing := [str(file) for file in files if file not in names]:
        raise HubError(f"{index.name} names {_listed(missing)}, which it doesn't have")
    return files


def _listed(names: Collection[str]) -> str:
    shown = sorted(names)[:MOST_NAMES]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
