"""Where the request log and the forests of a model are: a directory for each checkpoint, named by its
content.

Answers of other models have other lengths. In a container every model is mounted at the same path, so the
name comes from the files, not from the path. Called by the learner, the predictor and `make stats`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from python_backends.checkpoint.model_names import name_of
from python_backends.checkpoint.opening import open_source
from python_backends.settings import Settings


def directory_of(settings: Settings) -> Path:
    """The directory of the served model. The name before the digest is only for
    readers: a renamed model keeps its directory.
    """
    parent, model = settings.prediction_directory, settings.model_directory
    digest = open_source(model).digest()
    known = sorted(parent.glob(f"*-{digest}"))
    return known[0] if known else parent / f"{name_of(model)}-{digest}"


def adopt(settings: Settings) -> None:
    """Renames the directory of an older version, named after the model's path, if there is none yet.

    Called only by the learner, before it writes. Raises OSError.
    """
    directory, model = directory_of(settings), settings.model_directory.resolve()
    before = directory.parent / f"{model.name}-{hashlib.sha256(str(model).encode()).hexdigest()[:8]}"
    if before.is_dir() and not directory.exists():
        before.rename(directory)
