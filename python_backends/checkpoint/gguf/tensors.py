"""The tensors of a GGUF file under transformers' names and in its form. Values are the package gguf's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from python_backends.checkpoint.gguf.architectures import Architecture
from python_backends.checkpoint.gguf.header import Entry, Header, aligned
from python_backends.checkpoint.rows import filled, rows_at_once
from python_backends.checkpoint.source import CheckpointError, Stored

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ROTARY = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # read by `rotary`
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def names_of(architecture: Architecture, header: Header) -> dict[str, str]:
    """transformers' name of each tensor → the file's; one that is not known keeps the file's."""
    return {_name(architecture, name): name for name in header.tensors if name not in ROTARY}


def _name(architecture: Architecture, name: str) -> str:
    if layer := LAYER.fullmatch(name):
        number, module, part = layer.groups()
        if module in architecture.layer:
            return f"{architecture.layers}.{number}.{architecture.layer[module]}.{part}"
    module, _, part = name.rpartition(".")
    return f"{architecture.outside[module]}.{part}" if module in architecture.outside else name


def stored(path: Path, name: str, entry: Entry) -> Stored:
    """Raises CheckpointError for a type that is not known, and where the file is cut."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(entry.kind)
    except ValueError:
        raise CheckpointError(f"{path}: tensor {name} has the unknown type {entry.kind}") from None
    block, num_bytes = GGML_QUANT_SIZES[kind]
    if entry.shape[-1] % block:
        raise CheckpointError(
            f"{path}: tensor {name}: {entry.shape[-1]} columns are no blocks of {kind.name}"
        )
    size = prod(entry.shape) // block * num_bytes
    if entry.begin + size > path.stat().st_size:
        raise CheckpointError(f"{path}: ends before tensor {name} does: it is cut off or broken")
    return Stored(entry.shape, kind.name, path, entry.begin, size)


def check_places(found: Mapping[str, Stored], header: Header) -> None:
    """Raises CheckpointError unless each tensor begins where the one before it ends, as llama.cpp wants it:
    else a wrong type or place would give other numbers without a word.
    """
    end = aligned(header.num_bytes, header.alignment)
    for name, each in sorted(found.items(), key=lambda pair: pair[1].begin or 0):
        if each.begin != end:
            raise CheckpointError(
                f"{each.file}: tensor {name} begins at byte {each.begin}, but what is before it ends at {end}"
            )
        end = aligned(end + each.num_bytes, header.alignment)


def values_of(where: Stored, name: str, dtype: torch.dtype | None = None) -> Tensor:
    """Of all rows, in a memory of their own: vectors in float32, matrices in `dtype` if that is named. Raises
    CheckpointError for a type that gguf can't read, and ValueError where the file ends before.
    """
    import torch

    is_vector = len(where.shape) == 1  # a norm, from which 1 may be taken
    shape = (prod(where.shape[:-1]), where.shape[-1])
    values = torch.empty(shape, dtype=torch.float32 if is_vector else dtype)
    return filled(values, rows_of(where, name)).reshape(where.shape)


def rows_of(where: Stored, name: str) -> Iterator[Tensor]:
    """In float32, dequantised some at a time: the package holds several copies of them. Raises likewise."""
    import torch
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    kind, count = GGMLQuantizationType[where.dtype], prod(where.shape[:-1])
    size = rows_at_once(where.shape[-1])
    with where.file.open("rb") as file:  # pages that are mapped would count as memory of this process
        file.seek(where.begin or 0)
        for first in range(0, count, size):
            number = min(size, count - first)
            content = np.fromfile(file, np.uint8, where.num_bytes // count * number)
            try:
                made = dequantize(content.reshape(number, -1), kind)
            except NotImplementedError as error:
                raise CheckpointError(f"{where.file}: tensor {name} is of {where.dtype}: {error}") from error
            yield torch.from_numpy(made)


def is_turned(architecture: Architecture, name: str, shape: Sequence[int]) -> bool:
    """Whether transformers has its rows as columns."""
    return architecture.inputs_first and len(shape) == 2 and LAYER.fullmatch(name) is not None


def as_transformers_has_it(
    architecture: Architecture, heads: Callable[[str], int]
) -> Callable[[str, Tensor], Tensor]:
    """A function of a tensor's name in the file and its values. `heads`: those of "attn_q" or "attn_k"."""

    def changed(name: str, values: Tensor) -> Tensor:
        layer = LAYER.fullmatch(name)
        module = layer[2] if layer else name.rpartition(".")[0]
        if architecture.permuted and module in ("attn_q", "attn_k"):
            return _halves_turn(values, heads(module))
        if architecture.norm_plus_one and module.endswith("norm") and name.endswith(".weight"):
            values -= 1
        return values.T.contiguous() if is_turned(architecture, name, values.shape) else values

    return changed


def _halves_turn(values: Tensor, heads: int) -> Tensor:
    """Rows 0, 1, 2 … of a head were its dimensions 0, dim / 2, 1, dim / 2 + 1 …."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)
