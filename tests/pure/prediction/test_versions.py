"""Versions whose files are damaged: refused by name, wherever the damage is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from python_backends.nouns.stages import TEXT
from python_backends.prediction.forest import Forest, ForestError
from python_backends.prediction.stage_models import StageModels
from python_backends.prediction.state_model import KnownStates, StateModelError, learned

HEADER = b"PK\x01\x02"  # of each array in a zip file's directory
FLAGS, METHOD = 8, 10  # where these stand in it
ENCRYPTED, LZMA, UNKNOWN = 1, 14, 99


def regressions(path: Path) -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(1, 99, 60).astype(np.float32)
    known = KnownStates(0, random.random((60, 8)).astype(np.float32), lengths, np.ones(60, bool))
    StageModels({TEXT: learned(known)}).save(path)


def forest(path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 9999, 300).astype(np.float32)
    Forest(**{each.name: values for each in fields(Forest)}).save(path)


@pytest.mark.parametrize(
    ("save", "load", "refusal"),
    [(regressions, StageModels.load, StateModelError), (forest, Forest.load, ForestError)],
)
@pytest.mark.parametrize(
    ("place", "value"), [(FLAGS, ENCRYPTED), (METHOD, UNKNOWN), (METHOD, LZMA), (None, 0)]
)
def test_a_damaged_file_is_refused_by_name(
    save: Callable[[Path], None],
    load: Callable[[Path], object],
    refusal: type[Exception],
    place: int | None,
    value: int,
    tmp_path: Path,
) -> None:
    """At `place` of the headers, or in the middle of the first array."""
    path = tmp_path / "version.npz"
    save(path)
    content = bytearray(path.read_bytes())
    if place is None:
        content[150:170] = bytes(20)
    else:
        at = content.find(HEADER)
        while at >= 0:
            content[at + place] = value
            at = content.find(HEADER, at + 1)
    path.write_bytes(content)
    with pytest.raises(refusal, match=r"version\.npz: "):
        load(path)
