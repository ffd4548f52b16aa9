"""The list of models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from front.model import Model
from front.models import list_models


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
    assert [(each["id"], each["parent"]) for each in listed] == [
        ("served", None),
        ("other", None),
        ("law", "served"),
    ]
