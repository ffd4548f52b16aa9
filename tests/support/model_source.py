"""A source that is no file: transformers' model or configuration in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from python_backends.checkpoint.model_facts import ModelFacts, read_model_facts
from python_backends.checkpoint.source import Stored
from python_backends.checkpoint.tables import text_part
from python_backends.checkpoint.weight_files import PICKLED
from python_backends.engine.model.loading import Weights
from python_backends.engine.model.quantised import AS_IT_IS, Rounding

PATH = Path("memory")


class ModelSource:
    """`config`: config.json; `weights`: tensors by the names of transformers' modules."""

    lends_memory = True

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Tensor] | None = None) -> None:
        self.path = PATH
        self.config = text_part(dict(config))
        self.generation: dict[str, Any] = {}
        self.texts: dict[str, Any] = {}
        self.chat_template = (None, None)
        self._weights = weights or {}
        self.tensors = {
            name: Stored(tuple(each.shape), PICKLED[str(each.dtype).removeprefix("torch.")], PATH)
            for name, each in self._weights.items()
        }

    def tokenizer(self) -> Any:
        raise NotImplementedError

    def read(self, name: str, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
        return self._weights[name].to(device)

    def rows(self, name: str, dtype: torch.dtype | None = None) -> Iterator[Tensor]:
        yield self.read(name, dtype=dtype).clone()

    def groups(self, _name: str) -> None:
        return None

    def digest(self) -> str:
        return ""


def source_of(model: Any) -> ModelSource:
    """Of transformers' causal language model, whose weights it shares."""
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    weights = {name: each.detach() for name, each in model.state_dict().items()}
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    if tied:
        weights = {name: each for name, each in weights.items() if name != "lm_head.weight"}
    return ModelSource(config, weights)


def facts_from(model: Any) -> ModelFacts:
    """Also where PEFT has changed its modules."""
    return read_model_facts(source_of(model))


def read_from(model: Any, rounding: Rounding = AS_IT_IS) -> tuple[ModelFacts, Weights]:
    """As the engines read a checkpoint of transformers' `model`, in its own type."""
    source = source_of(model)
    facts = read_model_facts(source)
    weight = model.get_input_embeddings().weight
    return facts, Weights(facts, source, weight.dtype, weight.device, rounding)
