"""For the tests of the TensorRT-LLM engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tensorrt_llm.manners import manners

from tests.support.tensorrt import write_model


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint for the stand-in; its manners are the usual ones again afterwards."""
    usual = replace(manners)
    yield write_model(tmp_path)
    for name in vars(usual):
        setattr(manners, name, getattr(usual, name))
