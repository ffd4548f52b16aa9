"""Two short names of a checkpoint's content: 16 hexadecimal digits each, whatever its path."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from python_backends.checkpoint.config_file import CONFIG

# Samples of each weight file: fine-tuned models differ everywhere, and hashing all of a large model takes
# minutes.
NUM_SAMPLES, SAMPLE_BYTES = 16, 4096


def fingerprint(directory: Path, *chosen: str) -> str:
    """Which weights and settings make the tokens: over config.json, names and sizes of the weight files, and
    what was `chosen`.
    """
    parts = [*chosen, (directory / CONFIG).read_text()]
    parts += [f"{path.name} {path.stat().st_size}" for path in weight_files(directory)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def weight_files(directory: Path) -> list[Path]:
    return sorted([*directory.glob("*.safetensors"), *directory.glob("*.bin")])


def digest_of(model: Path) -> str:
    """Over configuration, tokenizer and samples of the weights."""
    digest = hashlib.sha256()
    for name in (CONFIG, "tokenizer.json"):
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
