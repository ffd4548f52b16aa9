"""Servers that many tests share: each lives as long as the worker of pytest that asks for it.

A test that kills processes of one waits until it is healed. Where tests need other settings, their module has
one server with these.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server.expected import Expected
from tests.support.server.serving import Gapless
from tests.support.server.toy_model import write_toy_model
from tests.support.toy_engine import toy_settings


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_model(tmp_path_factory.mktemp("toy-model"))


@pytest.fixture(scope="session")
def expected(toy_model: Path) -> Expected:
    return Expected(toy_model)


@pytest.fixture(scope="session")
def gapless(toy_model: Path) -> Iterator[Gapless]:
    """Gapless over the toy engine, as slow as a small model: 5 ms a step, 16 slots."""
    with Gapless(
        **{
            **toy_settings(toy_model, step_ms=5),
            "streams.dead_after_s": 3,
        }
    ) as served:
        yield served


@pytest.fixture(scope="session")
def bundled() -> Iterator[Gapless]:
    """The bundled model as `make serve` starts it, but in float32: texts are compared."""
    with Gapless(**{"model.dtype": "float32"}) as served:
        yield served
