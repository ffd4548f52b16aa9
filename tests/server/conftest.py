from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server.expected import Expected
from tests.support.server.serving import Gapless
from tests.support.server.toy_model import write_toy_model


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_model(tmp_path_factory.mktemp("toy-model"))


@pytest.fixture(scope="session")
def expected(toy_model: Path) -> Expected:
    return Expected(toy_model)


@pytest.fixture(scope="session")
def gapless(toy_model: Path) -> Iterator[Gapless]:
    """Gapless over the toy engine, as slow as a small model: 5 ms a step, 16 slots."""
    served = Gapless(
        **{
            "model.directory": toy_model,
            "engine.kind": "toy",
            "toy.step_ms": 5,
            "streams.dead_after_s": 3,
        }
    )
    yield served
    assert served.stop() == 0, served.log
