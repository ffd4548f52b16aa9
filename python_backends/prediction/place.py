"""Where the request log and the forests of a model are: a directory for each checkpoint, named by its
content.

Answers of other models have other lengths. In a container every model is mounted at the same path, so the
name comes from the files, not from the path. Called by the learner, the predictor and `make stats`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from python_backends.settings import ROOT, Settings

# Samples of each weight file: fine-tuned models differ everywhere, and hashing all of a large model takes
# minutes.
NUM_SAMPLES, SAMPLE_BYTES = 16, 4096


def directory_of(settings: Settings) -> Path:
    """The directory of the served model. The name before the digest is only for
    readers: a renamed model keeps its directory.
    """
    parent, model = ROOT / settings.prediction.directory, settings.model_directory.resolve()
    digest = digest_of(model)
    known = sorted(parent.glob(f"*-{digest}"))
    return known[0] if known else parent / f"{model.name}-{digest}"


def adopt(settings: Settings) -> None:
    """Renames the directory of an older version, named after the model's path, if there is none yet.

    Called only by the learner, before it writes. Raises OSError.
    """
    directory, model = directory_of(settings), settings.model_directory.resolve()
    before = directory.parent / f"{model.name}-{hashlib.sha256(str(model).encode()).hexdigest()[:8]}"
    if before.is_dir() and not directory.exists():
        before.rename(directory)


def digest_of(model: Path) -> str:
    """16 hexadecimal digits of configuration, tokenizer and samples of the weights; the path is not in it."""
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json"):
        digest.update((model / name).read_bytes() if (model / name).is_file() else b"\0")
    for path in sorted(model.glob("*.safetensors")):
        digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
        for sample in _samples(path):
            digest.update(sample)
    return digest.hexdigest()[:16]


def _samples(path: Path) -> Iterator[bytes]:
    """Evenly spaced samples, including the first and the last bytes."""
    last = max(0, path.stat().st_size - SAMPLE_BYTES)
    with path.open("rb") as file:
        for number in range(NUM_SAMPLES):
            file.seek(last * number // (NUM_SAMPLES - 1))
            yield file.read(SAMPLE_BYTES)
