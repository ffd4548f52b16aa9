"""Where the request log and the forests of a model are: a directory for each checkpoint, named by its
content.

Answers of other models have other lengths. In a container every model is mounted at the same path, so the
name comes from the files, not from the path. Called by the learner, the predictor and `make stats`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from python_backends.checkpoint.places import place_of
from python_backends.settings import Settings


def directory_of(settings: Settings) -> Path:
    """Of the served checkpoint."""
    return place_of(settings.prediction_directory, settings.model_directory)


def adopt(settings: Settings) -> None:
    """Renames the directory of an older version, named after the model's path, if there is none yet.

    Called only by the learner, before it writes. Raises OSError.
    """
    directory, model = directory_of(settings), settings.model_directory.resolve()
    before = directory.parent / f"{model.name}-{hashlib.sha256(str(model).encode()).hexdigest()[:8]}"
    if before.is_dir() and not directory.exists():
        before.rename(directory)
