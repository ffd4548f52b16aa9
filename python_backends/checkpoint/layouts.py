"""How checkpoints with few bits a weight store a linear module, and the float weight that is meant by it.

Each layout has the names that a module's parts have behind the module's: `values`, which are quantised if
their type is one of `types`; `scales`, the names that the scale may have; what is `optional`; and what is
`ignored`, because it says something of activations. It answers, of parts by these names but "values" and
"scale":

* `shapes`: [out, in] of the weight, and the shape that each part but the values must have
* `dtype`: the weight's, by the scale's
* `weight`: the weight, [out, in], to the last bit as the libraries have it that write such files. Raises
  ValueError.

Owns nothing. torch comes with the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

WORD_BITS = 32
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where the columns of a word lie in it, in units of 4 bits
ACTIVATIONS = ("input_scale", "input_zero_point", "output_scale", "activation_scale")
Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class Blocks:
    """One scale for each block of a weight; 0: as many rows or columns as there are."""

    rows: int = 0
    columns: int = 0

    def grid(self, shape: Shape) -> Shape:
        """How many there are."""
        return tuple(
            -(-size // (block or size)) for size, block in zip(shape, (self.rows, self.columns), strict=True)
        )

    def spread(self, scale: Tensor, shape: Shape) -> Tensor:
        """`scale` [grid] for each weight, or in a shape that is broadcast to it."""
        spread = scale.reshape(self.grid(shape))
        for dim, block in enumerate((self.rows, self.columns)):
            if block > 1:
                spread = spread.repeat_interleave(block, dim).narrow(dim, 0, shape[dim])
        return spread


@dataclass(frozen=True, slots=True)
class Bytes:
    """A weight a byte, as float8 or as int8 without zero point: compressed-tensors, and FP8 as DeepSeek's."""

    types: tuple[str, ...]
    blocks: Blocks
    scales: tuple[str, ...] = ("weight_scale",)
    in_float32: bool = False  # else in the scale's type
    values: ClassVar[str] = "weight"
    optional: ClassVar[tuple[str, ...]] = ()
    ignored: ClassVar[tuple[str, ...]] = ACTIVATIONS

    def shapes(self, values: Shape, scale: Shape) -> tuple[Shape, Shapes]:
        grid = self.blocks.grid(values)
        single = {(), (1,)} if grid == (1, 1) else {grid[:1]} if grid[1] == 1 else set()
        return values, {"scale": scale if scale in single else grid}

    def dtype(self, scale: str) -> str:
        return "F32" if self.in_float32 else scale

    def weight(self, parts: Mapping[str, Tensor]) -> Tensor:
        values, scale = parts["values"], parts["scale"]
        scale = scale.float() if self.in_float32 else scale
        return values.to(scale.dtype) * self.blocks.spread(scale, tuple(values.shape))


@dataclass(frozen=True, slots=True)
class PackedRows:
    """compressed-tensors' integers of `bits` bits, one after the other in the words of a row."""

    bits: int
    blocks: Blocks  # of one row each
    has_zeros: bool
    values: ClassVar[str] = "weight_packed"
    types: ClassVar[tuple[str, ...]] = ("I32",)
    scales: ClassVar[tuple[str, ...]] = ("weight_scale",)
    optional: ClassVar[tuple[str, ...]] = ()
    ignored: ClassVar[tuple[str, ...]] = ("weight_shape", *ACTIVATIONS)

    def shapes(self, values: Shape, scale: Shape) -> tuple[Shape, Shapes]:
        weight = (values[0], values[1] * (WORD_BITS // self.bits))
        grid = self.blocks.grid(weight)
        words = -(-grid[0] * self.bits // WORD_BITS)
        zeros = {"weight_zero_point": (words, grid[1])} if self.has_zeros else {}
        return weight, {"scale": grid, **zeros}

    def dtype(self, scale: str) -> str:
        return scale

    def weight(self, parts: Mapping[str, Tensor]) -> Tensor:
        scale, offset = parts["scale"], 1 << (self.bits - 1)
        values = unpacked(parts["values"], self.bits) - offset
        shape = tuple(values.shape)
        weight = values.to(scale.dtype)
        if self.has_zeros:
            zeros = unpacked(parts["weight_zero_point"].T, self.bits).T[: len(scale)] - offset
            weight = weight - self.blocks.spread(zeros.to(scale.dtype), shape)
        return weight * self.blocks.spread(scale, shape)


@dataclass(frozen=True, slots=True)
class Awq:
    """AutoAWQ's `gemm`: 4 bits, columns of a word in an order of their own, a zero for each group."""

    group: int  # of inputs; 0: all
    values: ClassVar[str] = "qweight"
    types: ClassVar[tuple[str, ...]] = ("I32",)
    scales: ClassVar[tuple[str, ...]] = ("scales",)
    optional: ClassVar[tuple[str, ...]] = ()
    ignored: ClassVar[tuple[str, ...]] = ()

    def shapes(self, values: Shape, scale: Shape) -> tuple[Shape, Shapes]:
        ins, outs = values[0], values[1] * len(AWQ_ORDER)
        groups = -(-ins // (self.group or ins))
        return (outs, ins), {"scale": (groups, outs), "qzeros": (groups, values[1])}

    def dtype(self, scale: str) -> str:
        return scale

    def weight(self, parts: Mapping[str, Tensor]) -> Tensor:
        scale = parts["scale"]
        values, zeros = (self._in_order(unpacked(parts[name], 4)) for name in ("values", "qzeros"))
        group = self.group or len(values)
        zeros, scale = (each.repeat_interleave(group, 0)[: len(values)] for each in (zeros, scale))
        return ((values - zeros).to(scale.dtype) * scale).T.contiguous()

    @staticmethod
    def _in_order(values: Tensor) -> Tensor:
        words = values.reshape(len(values), -1, len(AWQ_ORDER))
        return words[:, :, list(AWQ_ORDER)].flatten(1)


@dataclass(frozen=True, slots=True)
class Gptq:
    """GPTQ's 4 or 8 bits: inputs in the words of a column, and `g_idx`, the group of each input."""

    bits: int
    group: int  # of inputs, where g_idx is not there; 0: all
    zeros_less_one: bool  # version 1 of the format
    values: ClassVar[str] = "qweight"
    types: ClassVar[tuple[str, ...]] = ("I32",)
    scales: ClassVar[tuple[str, ...]] = ("scales",)
    optional: ClassVar[tuple[str, ...]] = ("g_idx",)
    ignored: ClassVar[tuple[str, ...]] = ()

    def shapes(self, values: Shape, scale: Shape) -> tuple[Shape, Shapes]:
        ins, outs = values[0] * (WORD_BITS // self.bits), values[1]
        groups = -(-ins // (self.group or ins))
        words = -(-outs * self.bits // WORD_BITS)
        return (outs, ins), {"scale": (groups, outs), "qzeros": (groups, words), "g_idx": (ins,)}

    def dtype(self, scale: str) -> str:
        return scale

    def weight(self, parts: Mapping[str, Tensor]) -> Tensor:
        words, scale = parts["qzeros"], parts["scale"]
        if self.zeros_less_one:  # over the whole word, as it was taken away
            words = words + sum(1 << shift for shift in range(0, WORD_BITS, self.bits))
        values, zeros = (
            unpacked(parts["values"].T, self.bits).T,
            unpacked(words, self.bits)[:, : scale.shape[1]],
        )
        groups = parts.get("g_idx")
        if groups is None:
            groups = values.new_tensor(range(len(values))) // (self.group or len(values))
        groups = groups.long()
        if not 0 <= groups.min() <= groups.max() < len(scale):
            raise ValueError(f"g_idx names a group that is none of {len(scale)}")
        return (scale[groups] * (values - zeros[groups]).to(scale.dtype)).T.contiguous()


Layout = Bytes | PackedRows | Awq | Gptq


def unpacked(words: Tensor, bits: int) -> Tensor:
    """[rows, columns] int32 as [rows, columns · 32 / bits], the lowest bits first."""
    shifts = words.new_tensor(range(0, WORD_BITS, bits))
    return ((words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(-2)
