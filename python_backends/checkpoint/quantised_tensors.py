"""The tensors of a quantised checkpoint as if its weights were float: each is dequantised when it is read.

Tensors of a layout that belong to one weight disappear behind it; all others are as they are stored. Called
by `directory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from python_backends.checkpoint.layouts import Layout
from python_backends.checkpoint.source import CheckpointError, Stored

if TYPE_CHECKING:
    from torch import Tensor

FLOATS, WORDS = ("F16", "BF16", "F32"), ("I32",)


class QuantisedTensors:
    def __init__(self, layout: Layout, stored: Mapping[str, Stored]) -> None:
        """Raises CheckpointError, by a tensor that is missing or has a shape or type that can't be."""
        self._layout, self._stored = layout, stored
        self._parts: dict[str, dict[str, str]] = {}  # of each weight: names of tensors by their role
        self.tensors: dict[str, Stored] = {}
        used: set[str] = set()
        for name, each in stored.items():
            module, _, last = name.rpartition(".")
            if last == layout.values and each.dtype in layout.types and _is_matrix(each.shape):
                parts = self._add(module)
                used |= {*parts.values(), *(f"{module}.{part}" for part in layout.ignored)}
        self.tensors |= {name: each for name, each in stored.items() if name not in used}

    def read(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        """`read`: a stored tensor by its name. Raises CheckpointError."""
        if name not in self._parts:
            return read(name)
        parts = {role: read(part) for role, part in self._parts[name].items()}
        try:
            return self._layout.weight(parts)
        except ValueError as error:
            raise CheckpointError(f"{self.tensors[name].file}: {name}: {error}") from error

    def _add(self, module: str) -> dict[str, str]:
        """The parts of the weight of a module, which is one from now on."""
        values = self._stored[f"{module}.{self._layout.values}"]
        names = [f"{module}.{each}" for each in self._layout.scales]
        scale = next((name for name in names if name in self._stored), names[0])
        shape, shapes = self._layout.shapes(values.shape, self._of(scale, values).shape)
        parts = {"values": f"{module}.{self._layout.values}"}
        for role, wanted in shapes.items():
            name = scale if role == "scale" else f"{module}.{role}"
            if role not in self._layout.optional or name in self._stored:
                self._check(name, self._of(name, values), wanted, FLOATS if role == "scale" else WORDS)
                parts[role] = name
        dtype = self._layout.dtype(self._stored[scale].dtype)
        self.tensors[f"{module}.weight"] = Stored(shape, dtype, values.file, values.begin, values.num_bytes)
        self._parts[f"{module}.weight"] = parts
        return parts

    def _of(self, name: str, values: Stored) -> Stored:
        if name not in self._stored:
            raise CheckpointError(f"{values.file}: the quantised weights lack {name}")
        return self._stored[name]

    def _check(self, name: str, each: Stored, shape: tuple[int, ...], types: tuple[str, ...]) -> None:
        if each.shape != shape or each.dtype not in types:
            said, must = f"{each.dtype} {list(each.shape)}", f"{' or '.join(types)} {list(shape)}"
            raise CheckpointError(f"{each.file}: {name} is {said}; quantization_config says {must}")


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and all(shape)
