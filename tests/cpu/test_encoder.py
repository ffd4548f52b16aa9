"""The packaged sentence encoder: the published weights, loaded without a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from python_backends.prediction import encoder
from python_backends.prediction.encoder import PACKAGED, EncoderError, SentenceEncoder, packaged_directory


def test_the_packaged_model_is_the_published_one_and_knows_what_is_alike() -> None:
    assert packaged_directory().is_dir()
    packaged = SentenceEncoder(PACKAGED)
    assert (packaged.name, packaged.dim) == (PACKAGED, 384)
    fix, mend, sing = packaged.encode(["Fix the bug", "Repair the error", "Sing a song"])
    assert fix @ mend > fix @ sing
    assert np.linalg.norm(fix) == pytest.approx(1, abs=1e-3)


def test_a_relative_directory_begins_in_that_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The predictor runs in the run directory."""
    monkeypatch.setattr(encoder, "ROOT", packaged_directory().parent)
    monkeypatch.chdir(tmp_path)
    assert SentenceEncoder(packaged_directory().name).dim == 384


def test_an_encoder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="nowhere"):
        SentenceEncoder(str(tmp_path / "nowhere"))
