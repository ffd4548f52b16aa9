"""Where the request log and the forests of a model lie: a directory for each checkpoint, found by what is in it.

Answers of other models have other lengths. In a container every model is mounted at the same path, so the path does not tell them
apart; the files do. The learner, the predictor and `make stats` ask here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from python_backends.config import ROOT, Settings

NUM_SAMPLES, SAMPLE_BYTES = 16, 4096  # of each weight file: fine-tuned models differ everywhere, and hashing all takes minutes


def directory_of(settings: Settings) -> Path:
    """Of the model that is served. The name before its digest is for people only: a model that was renamed keeps its directory."""
    parent, model = ROOT / settings.prediction.directory, settings.model_directory.resolve()
    digest = digest_of(model)
    known = sorted(parent.glob(f"*-{digest}"))
    return known[0] if known else parent / f"{model.name}-{digest}"


def adopt(settings: Settings) -> None:
    """Gives the served model the directory that was named after its path before directories were named after checkpoints.

    Only for the learner, before it writes. Raises OSError.
    """
    directory, model = directory_of(settings), settings.model_directory.resolve()
    before = directory.parent / f"{model.name}-{hashlib.sha256(str(model).encode()).hexdigest()[:8]}"
    if before.is_dir() and not directory.exists():
        before.rename(directory)


def digest_of(model: Path) -> str:
    """16 hexadecimal digits over configuration, tokenizer and samples of the weights; the same wherever the checkpoint lies."""
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json"):
        digest.update((model / name).read_bytes() if (model / name).is_file() else b"\0")
    for path in sorted(model.glob("*.safetensors")):
        digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
        for sample in _samples(path):
            digest.update(sample)
    return digest.hexdigest()[:16]


def _samples(path: Path) -> Iterator[bytes]:
    """Evenly spaced, the first and the last bytes among them."""
    last = max(0, path.stat().st_size - SAMPLE_BYTES)
    with path.open("rb") as file:
        for number in range(NUM_SAMPLES):
            file.seek(last * number // (NUM_SAMPLES - 1))
            yield file.read(SAMPLE_BYTES)
