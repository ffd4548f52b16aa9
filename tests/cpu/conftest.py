"""The tiny models, made once a session, and the account of how well tokens agreed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from python_backends.engine.torch.training import lora_in_training
from python_backends.finetuning import pack_memory
from tests.conftest import say
from tests.support.tiny_models import TINY, Agreement, TinyModel, build


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The models are too small for two threads."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def small_packs() -> Iterator[None]:
    """So that a mini-batch of training has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_memory, "PACK_TOKENS", 48)
        patch.setattr(lora_in_training, "CPU_TILE_TOKENS", 48)
        yield


@pytest.fixture(scope="session")
def agreement(request: pytest.FixtureRequest) -> Iterator[Agreement]:
    counted = Agreement()
    yield counted
    say(request.config, counted.told())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, agreement: Agreement) -> Callable[[str], TinyModel]:
    """The tiny model of a name."""
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            model, directory = build(name), tmp_path_factory.mktemp(name)
            model.save_pretrained(directory)
            made[name] = TinyModel(directory, model, agreement)
        return made[name]

    return make


@pytest.fixture(params=sorted(TINY))
def each(request: pytest.FixtureRequest, tiny: Callable[[str], TinyModel]) -> TinyModel:
    """Every tiny model in turn, but for relatives."""
    return tiny(request.param)


@pytest.fixture
def one(tiny: Callable[[str], TinyModel]) -> TinyModel:
    """One model, where the architecture doesn't matter."""
    return tiny("llama_grouped")
