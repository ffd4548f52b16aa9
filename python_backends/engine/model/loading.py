"""The checkpoint of the settings: its facts, and its tensors one by one, in the model's type on its device.

The same way for a CPU and for a GPU, without a module of transformers. Owns nothing; refuses with a
SettingsError that names what is wrong. Called by the engines at their start.
"""

from __future__ import annotations

import torch
from torch import Tensor

from python_backends.checkpoint.locating import located
from python_backends.checkpoint.model_facts import ModelFacts, read_model_facts
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError, Source
from python_backends.checkpoint.tensor_names import shapes_of
from python_backends.engine.model.random_source import RandomSource
from python_backends.settings import Settings, SettingsError

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Weights:
    """The tensors of a model by the names of transformers' modules."""

    def __init__(
        self,
        facts: ModelFacts,
        source: Source,
        dtype: torch.dtype,
        device: torch.device,
        stored_products: bool = False,
    ) -> None:
        """`stored_products`: `product` gives them in the type in which they are stored.

        Raises SettingsError if a tensor is missing, has another shape or no place.
        """
        self.dtype, self.device, self._source = dtype, device, source
        self._product_dtype = None if stored_products else dtype
        self._shapes, self._inputs_first = shapes_of(facts), facts.family.inputs_first
        try:
            self._names = located(facts, source)
        except CheckpointError as error:
            raise refused(source, error) from error

    def are_one(self, name: str, other: str) -> bool:
        """Whether the source has one tensor for both."""
        return self._names[name] == self._names[other]

    def tensor(self, name: str) -> Tensor:
        """A new one, in its own memory; what a source has in pieces, with the rows of one after those of the
        other. Raises SettingsError if its file can't be read.
        """
        return self._read(name, self.dtype)

    def product(self, name: str) -> Tensor:
        """The weight [out, in] of one of a layer's products, likewise, however the family stores it."""
        weight = self._read(name, self._product_dtype)
        return weight.T.contiguous() if self._inputs_first else weight

    def _read(self, name: str, dtype: torch.dtype | None) -> Tensor:
        pieces = [self._piece(name, dtype) for name in self._names[name]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -2).view(self._shapes[name])

    def _piece(self, name: str, dtype: torch.dtype | None) -> Tensor:
        try:
            read = self._source.read(name, self.device, dtype)
        except CheckpointError as error:
            raise refused(self._source, error) from error
        own = read.to(dtype or read.dtype)
        is_lent = own is read and self._source.lends_memory and self.device.type == "cpu"
        return own.clone() if is_lent else own


def facts_of(settings: Settings) -> ModelFacts:
    """Raises SettingsError where no engine of ours computes the model."""
    source = open_source(settings.model_directory)
    try:
        return read_model_facts(source)
    except CheckpointError as error:
        raise refused(source, error) from error


def open_weights(settings: Settings, facts: ModelFacts, device: torch.device = CPU) -> Weights:
    """Raises SettingsError."""
    dtype = DTYPES[settings.model.dtype]
    source: Source = open_source(settings.model_directory)
    if settings.model.random_weights:
        source = RandomSource(facts, dtype)
    return Weights(facts, source, dtype, device, stored_products=settings.model.weights == "int4")


def refused(source: Source, error: CheckpointError) -> SettingsError:
    directory, why = str(source.path), str(error)
    for before in (f"{directory}/", f"{directory}: "):
        why = why.removeprefix(before)
    return SettingsError(f"model.directory = {directory!r}: {why}")
