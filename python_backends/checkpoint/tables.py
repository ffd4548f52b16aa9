"""JSON files of a checkpoint. Files of strangers: they may hold anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from python_backends.checkpoint.source import CheckpointError

# where a configuration has a part for text
OF_THE_WHOLE = ("architectures", "tie_word_embeddings", "eos_token_id")


def read_table(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or an empty one if the file is absent. Raises CheckpointError."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return value


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """`config` with what it says of the text: models that also take images or audio have it in a part. Their
    head is the embedding if either says so, and the tokens that end an answer are those of the whole where it
    names some, as in transformers.
    """
    text = config.get("text_config")
    if not isinstance(text, dict):
        return config
    return {**config, **text, **{name: config[name] for name in OF_THE_WHOLE if config.get(name)}}
