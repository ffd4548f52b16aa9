"""Two short names of a checkpoint's content: 16 hexadecimal digits each, whatever its path."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from python_backends.checkpoint.source import Source, Stored

# Samples of each weight file: fine-tuned models differ everywhere, and hashing all of a large model takes
# minutes.
NUM_SAMPLES, SAMPLE_BYTES = 16, 4096


def digest_of(texts: Iterable[Path], weights: Iterable[Path]) -> str:
    """Over whole files and samples of others. It names directories of what was learned: another way of
    computing it would lose them.
    """
    digest = hashlib.sha256()
    for path in texts:
        digest.update(path.read_bytes() if path.is_file() else b"\0")
    for path in weights:
        digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
        for sample in _samples(path):
            digest.update(sample)
    return digest.hexdigest()[:16]


def fingerprint(source: Source, *chosen: str) -> str:
    """Which weights and settings make the tokens: what was `chosen`, the digest, and the first and last bytes
    of every tensor. Raises CheckpointError.
    """
    digest = hashlib.sha256("\n".join([*chosen, source.digest()]).encode())
    for name, stored in sorted(source.tensors.items()):
        digest.update(f"\0{name}\0{stored.dtype}\0{stored.shape}\0".encode())
    for sample in _ends(source.tensors):
        digest.update(sample)
    return digest.hexdigest()[:16]


def _ends(tensors: Mapping[str, Stored]) -> Iterator[bytes]:
    """In the order in which they lie in their files."""
    known = [stored for stored in tensors.values() if stored.begin is not None]
    for stored in sorted(known, key=lambda stored: (stored.file, stored.begin)):
        with stored.file.open("rb") as file:
            for back in (stored.num_bytes, min(stored.num_bytes, SAMPLE_BYTES)):
                file.seek((stored.begin or 0) + stored.num_bytes - back)
                yield file.read(min(stored.num_bytes, SAMPLE_BYTES))


def _samples(path: Path) -> Iterator[bytes]:
    """Evenly spaced samples, including the first and the last bytes."""
    last = max(0, path.stat().st_size - SAMPLE_BYTES)
    with path.open("rb") as file:
        for number in range(NUM_SAMPLES):
            file.seek(last * number // (NUM_SAMPLES - 1))
            yield file.read(SAMPLE_BYTES)
