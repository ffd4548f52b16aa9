"""Where the request log and the forests of a model are: a directory for each checkpoint, named by its
content.

Answers of other models have other lengths. In a container every model is mounted at the same path, so the
name comes from the files, not from the path. Called by the learner, the predictor and `make stats`.
"""

from __future__ import annotations

from pathlib import Path

from python_backends.checkpoint.places import place_of
from python_backends.settings import Settings


def directory_of(settings: Settings) -> Path:
    """Of the served checkpoint."""
    return place_of(settings.prediction_directory, settings.model_directory)
