"""A checkpoint of random weights (`model.random_weights`): for measuring speed, not for use."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.checkpoint.rows import in_pieces
from python_backends.checkpoint.source import Stored
from python_backends.checkpoint.tensor_names import HEAD, shapes_of

STD = 0.02


class RandomSource:
    """See `Source`. Every instance draws the same ones, on a device of the same kind."""

    lends_memory = False

    def __init__(self, facts: ModelFacts, dtype: torch.dtype) -> None:
        self.path, self._dtype = facts.path, dtype
        self._norm = 0.0 if facts.family.norm_adds_one else 1.0
        self.config: dict[str, Any] = {}
        self.generation: dict[str, Any] = {}
        self.texts: dict[str, Any] = {}
        self.chat_template: tuple[str | None, Path | None] = (None, None)
        shapes = shapes_of(facts)
        if facts.is_tied:
            del shapes[f"{HEAD}.weight"]
        self.tensors: Mapping[str, Stored] = {
            name: Stored(shape, "BF16", self.path) for name, shape in shapes.items()
        }

    def tokenizer(self) -> Any:
        raise NotImplementedError("random weights have no tokenizer")

    def read(self, name: str, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
        shape, on = self.tensors[name].shape, torch.device(device)
        if len(shape) == 1:  # a norm or a bias
            value = 0.0 if name.endswith(".bias") else self._norm
            return torch.full(shape, value, dtype=self._dtype, device=on)
        drawn = torch.empty(shape, dtype=self._dtype, device=on)
        generator = None if on.type == "meta" else torch.Generator(on).manual_seed(zlib.crc32(name.encode()))
        return drawn.normal_(std=STD, generator=generator)

    def rows(self, name: str, dtype: torch.dtype | None = None) -> Iterator[Tensor]:
        return in_pieces(self.read(name, dtype=dtype))

    def groups(self, _name: str) -> None:
        return None

    def digest(self) -> str:
        return ""
