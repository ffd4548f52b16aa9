"""Whether a model got every tensor of its checkpoint, and all of its own from there: what transformers only
reports decides here.

A tensor that is missing would be drawn at random at each start, one that is unknown may be the scale of
another: such a checkpoint is refused by their names. Owns nothing. Called by `checkpoint`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from python_backends.checkpoint.source import CheckpointError
from python_backends.settings import SettingsError

# computed by each model from its configuration; older checkpoints hold them
COMPUTED = re.compile(r"(rotary_emb\.inv_freq|attention\.bias|\.masked_bias)$")
MOST_NAMES = 5


def refuse_parts(directory: Path, loading: Mapping[str, Any]) -> None:
    """`loading`: what transformers says of it. Raises SettingsError."""
    unknown = [name for name in loading["unexpected_keys"] if not COMPUTED.search(name)]
    mismatched = [name for name, *_ in loading["mismatched_keys"]]
    for what, names in (
        ("the weights lack", loading["missing_keys"]),
        ("of another shape than config.json says are", mismatched),
        ("this model has no place for", unknown),
    ):
        if names:
            raise refusal(directory, f"{what} {_listed(names)}")


def refusal(directory: Path, why: str) -> SettingsError:
    return SettingsError(f"model.directory = {str(directory)!r}: {why}")


def refused_file(directory: Path, error: CheckpointError) -> SettingsError:
    return refusal(directory, str(error).removeprefix(f"{directory}/"))


def unreadable(directory: Path, error: Exception) -> SettingsError:
    """What to say of weights that could not be loaded: in one line, by the file if one is broken."""
    why = " ".join(f"{type(error).__name__}: {error}".split())
    return refusal(directory, f"{_broken_file(directory) or 'the weights'} can't be loaded: {why:.300}")


def _listed(names: Collection[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(sorted(names)[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _broken_file(directory: Path) -> str:
    """The name of the first file that can't be read as what it is called; "" if all can."""
    for path in sorted(directory.glob("*.safetensors*")):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text())["weight_map"].values()
            else:
                with safe_open(path, framework="pt"):
                    pass
        except Exception:  # whatever the readers raise
            return path.name
    return ""
