"""The model of a server, and the list of models."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from front.model import Model
from front.models import list_models
from python_backends.settings import ModelSettings, Settings
from python_backends.watching.board import Board
from tests.support.text.checkpoints import byte_level_tokenizer, write_checkpoint


class Vanishing(SimpleNamespace):
    """A model with an adapter that is removed while models are listed."""

    reads = 0

    @property
    def adapters(self) -> list[Any]:
        self.reads += 1
        return [SimpleNamespace(name=name) for name in ("law", "served")] if self.reads == 1 else []


def test_an_adapter_that_goes_while_models_are_listed_does_no_harm() -> None:
    model = Vanishing(names=("served", "other"), name="served", made_s=1, max_tokens=8)
    listed = list_models(cast(Model, model))
    assert [(each["id"], each["parent"]) for each in listed["data"]] == [
        ("served", None),
        ("other", None),
        ("law", "served"),
    ]


def test_models_have_what_anthropics_types_require() -> None:
    model = SimpleNamespace(names=("served", "other"), name="served", made_s=1, max_tokens=8, adapters=())
    listed = list_models(cast(Model, model))
    page = (listed["has_more"], listed["first_id"], listed["last_id"])
    assert page == (False, "served", "other")
    shown = listed["data"][1]
    assert (shown["type"], shown["display_name"]) == ("model", "other")
    assert shown["created_at"] == "1970-01-01T00:00:01+00:00"


def test_the_start_names_what_generation_config_says_of_tokens_and_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = {"suppress_tokens": [1], "forced_eos_token_id": 2, "no_repeat_ngram_size": 0, "temperature": 0.6}
    write_checkpoint(tmp_path, byte_level_tokenizer(), {}, generation_config=said)
    with caplog.at_level(logging.INFO, "gapless.front"):
        Model(Settings(model=ModelSettings(directory=str(tmp_path))), Board())
    assert caplog.messages == ["generation_config.json: suppress_tokens, forced_eos_token_id: not followed"]
