"""The checkpoint of the settings: its facts, and its tensors one by one, in the model's type on its device.

The same way for a CPU and for a GPU, without a module of transformers. Owns nothing; refuses with a
SettingsError that names what is wrong. Called by the engines at their start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from python_backends.checkpoint.locating import located
from python_backends.checkpoint.model_facts import ModelFacts, read_model_facts
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.rows import filled
from python_backends.checkpoint.source import CheckpointError, Source
from python_backends.checkpoint.tensor_names import shapes_of
from python_backends.engine.model.description import Linear
from python_backends.engine.model.quantised import AS_IT_IS, Rounding, in_bytes, quantise_rows, rounding
from python_backends.engine.model.random_source import RandomSource
from python_backends.engine.model.used_rows import used_up
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
        rounding: Rounding = AS_IT_IS,
    ) -> None:
        """`rounding`: of products and the head. Raises SettingsError if a tensor is missing, has another
        shape or no place.
        """
        self.dtype, self.device, self._source, self._rounding = dtype, device, source, rounding
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

    def products(self, names: Sequence[str]) -> list[Linear]:
        """Those of a layer that have the same input, likewise, however the family stores them; their biases
        are not read. All of them are kept by group, in bytes where they have different bits, or none.
        """
        kept = [each for name in names if (each := self._in_groups(name))]
        if len(kept) < len(names):
            return [self._product(name) for name in names]
        kinds = {(each.weight.dtype, each.minimum is None) for each in kept}
        return kept if len(kinds) == 1 else list(map(in_bytes, kept))

    def _in_groups(self, name: str) -> Linear | None:
        if not self._rounding.keeps_groups or len(self._names[name]) > 1 or self._inputs_first:
            return None
        with self._reading():
            groups = self._source.groups(self._names[name][0])
        return None if groups is None else Linear(groups.codes, None, groups.scales, groups.minima)

    def _product(self, name: str) -> Linear:
        weight = self._read(name, None if self._rounding.of_stored else self.dtype)
        return self._rounding.product(Linear(weight.T.contiguous() if self._inputs_first else weight, None))

    def experts(self, name: str) -> Linear:
        """Products of all experts of a layer, likewise."""
        return self._rounding.product(Linear(self.tensor(name), None))

    def head(self, name: str) -> Linear:
        """The head or the embedding that is one, likewise; by group always in bytes. A CPU has it in memory
        once, as it was or as it will be.
        """
        if self.device.type != "cpu":
            return Linear(self.tensor(name), None)
        if by_group := self._in_groups(name):
            return by_group if by_group.weight.dtype == torch.int8 else in_bytes(by_group)
        rows, shape = self._rows(name), self._shapes[name]
        if self._rounding.head:
            return quantise_rows(rows, shape, self.dtype)
        return Linear(filled(torch.empty(shape, dtype=self.dtype), rows), None)

    def _read(self, name: str, dtype: torch.dtype | None) -> Tensor:
        pieces = [self._piece(name, dtype) for name in self._names[name]]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -2).view(self._shapes[name])

    def _rows(self, name: str) -> Iterator[Tensor]:
        with self._reading():
            for own in self._names[name]:
                for rows in used_up(self._source.rows(own, self.dtype)):
                    yield rows.to(self.dtype)

    def _piece(self, name: str, dtype: torch.dtype | None) -> Tensor:
        with self._reading():
            read = self._source.read(name, self.device, dtype)
        own = read.to(dtype or read.dtype)
        is_lent = own is read and self._source.lends_memory and self.device.type == "cpu"
        return own.clone() if is_lent else own

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            raise refused(self._source, error) from error


def facts_of(settings: Settings) -> ModelFacts:
    """Raises SettingsError where no engine of ours computes the model."""
    source = open_source(settings.model_directory)
    try:
        return read_model_facts(source)
    except CheckpointError as error:
        raise refused(source, error) from error


def open_weights(
    settings: Settings,
    facts: ModelFacts,
    device: torch.device = CPU,
    *,
    for_layers: bool = False,
    with_tiles: bool = False,
) -> Weights:
    """As the settings want them kept, `for_layers` in C++, which multiply `with_tiles`. Raises
    SettingsError.
    """
    dtype = DTYPES[settings.model.dtype]
    source: Source = open_source(settings.model_directory)
    if settings.model.random_weights:
        source = RandomSource(facts, dtype)
    kept = rounding(settings.model.weights, dtype, for_layers, with_tiles)
    return Weights(facts, source, dtype, device, kept)


def refused(source: Source, error: CheckpointError) -> SettingsError:
    directory, why = str(source.path), str(error)
    for before in (f"{directory}/", f"{directory}: "):
        why = why.removeprefix(before)
    return SettingsError(f"model.directory = {directory!r}: {why}")
