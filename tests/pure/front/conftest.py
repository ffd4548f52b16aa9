"""A front over a stand-in ensemble, and OpenAI's own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from client.wire import Piece
from front.keys import Keys
from tests.support.ensemble import Ensemble, Front
from tests.support.server.toy_model import write_toy_model
from tests.support.tool_model import write_tool_model

KEY = "sk-test"
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
def sdk(front: Front) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made
