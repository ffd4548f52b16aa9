"""A front over a stand-in ensemble, also one of a server that trains, and OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from client.wire import Piece
from front.keys import Keys
from python_backends.finetuning.jobs import jobs_directory
from python_backends.settings import (
    BUNDLED_DIRECTORY,
    ROOT,
    AdapterSettings,
    FinetuningSettings,
    ModelSettings,
    Settings,
)
from tests.support.ensemble import Ensemble, Front
from tests.support.server.toy_model import write_toy_model
from tests.support.tool_model import write_tool_model

KEY = "sk-test"
BUNDLED = ROOT / BUNDLED_DIRECTORY
ANSWER = (
    Piece("read", num_input_tokens=14, num_cached_tokens=8, num_output_tokens=1),
    Piece("All\u2028", num_input_tokens=14, num_cached_tokens=8, num_output_tokens=2),
    Piece("Lines", "stop", num_input_tokens=14, num_cached_tokens=8, num_output_tokens=2),
)
MESSAGES = [{"role": "user", "content": "Convert"}]


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="package")
def tool_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tool_model(tmp_path_factory.mktemp("models") / "tools")


@pytest.fixture
def tool_front(ensemble: Ensemble, tool_model: Path, tmp_path: Path) -> Iterator[Front]:
    """Its model writes thoughts and calls."""
    made = Front(ensemble, tool_model, tmp_path, Keys(()))
    yield made
    made.close()


@pytest.fixture
def ensemble() -> Ensemble:
    return Ensemble(ANSWER)


@pytest.fixture
def front(ensemble: Ensemble, model: Path, tmp_path: Path) -> Iterator[Front]:
    made = Front(ensemble, model, tmp_path, Keys(()))
    yield made
    made.close()


@pytest.fixture
def sections(tmp_path: Path) -> dict[str, Any]:
    """Settings of a server that trains."""
    (tmp_path / "adapters").mkdir()
    return {
        "adapters": AdapterSettings(directory=str(tmp_path / "adapters")),
        "finetuning": FinetuningSettings(directory=str(tmp_path / "finetuning")),
    }


@pytest.fixture
def directory(sections: dict[str, Any]) -> Path:
    """Of its jobs."""
    return jobs_directory(Settings(model=ModelSettings(directory=str(BUNDLED)), **sections))


@pytest.fixture
def training(ensemble: Ensemble, tmp_path: Path, sections: dict[str, Any]) -> Iterator[Front]:
    made = Front(ensemble, BUNDLED, tmp_path, Keys(()), **sections)
    yield made
    made.close()


@pytest.fixture
def sdk(front: Front) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made
