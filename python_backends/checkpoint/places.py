"""Where what belongs to a checkpoint is kept: its request log, its jobs, its batches."""

from __future__ import annotations

from pathlib import Path

from python_backends.checkpoint.model_names import name_of
from python_backends.checkpoint.opening import open_source

NUM_DIGITS = 16  # of a digest
SHORT = 8  # of these, in the names of what a server works on: jobs, batches, corrections


def place_of(parent: Path, model: Path, num_digits: int = NUM_DIGITS) -> Path:
    """Returns the directory in `parent` of the checkpoint `model`: its name and the first digits of its
    digest.

    The name is only for readers: where there is no directory of this name, one of the same content is
    taken, so a renamed checkpoint keeps its own. Two servers that serve the same content by different names
    at once share the directory that was there first. Each job and each batch is worked on by one of them;
    requests of a batch for a name that this one does not serve fail.
    """
    digest = open_source(model).digest()[:num_digits]
    named = parent / f"{name_of(model)}-{digest}"
    known = sorted(parent.glob(f"*-{digest}"))
    return named if named in known or not known else known[0]
