"""Weights of layers rounded to int8, with a scale for each output channel, or to 4 bits by group
(`four_bits`); without calibration.

Owns nothing: each product is rounded when it is read, and a head some rows at a time, so that a model is
never held twice. The head becomes int8 at most, with layers in C++: it decides between tokens. The router of
experts, which decides between these, stays as it is. Called where weights are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from python_backends.checkpoint.rows import in_pieces
from python_backends.engine.model.description import Linear
from python_backends.engine.model.four_bits import in_groups, numbers

LARGEST = 127
BYTES = 16  # of a group


@dataclass(frozen=True, slots=True)
class Rounding:
    product: Callable[[Linear], Linear]
    of_stored: bool = False  # products are rounded from the type in which they are stored
    keeps_groups: bool = False  # products and a head that are stored in few bits by group stay so
    head: bool = False  # to int8, and with it an embedding that is the head's weight


AS_IT_IS = Rounding(lambda linear: linear)


def rounding(weights: str, dtype: torch.dtype, for_layers: bool, with_tiles: bool = False) -> Rounding:
    """As the setting model.weights says, `for_layers` in C++. What else computes does not multiply 4 bits: it
    gets the same numbers in `dtype`. In bfloat16 few bits are kept only `with_tiles` to multiply it:
    without, they make steps of many rows longer.
    """
    if weights == "int8":
        return Rounding(_by_rows if for_layers else quantise, head=for_layers)
    if weights == "int4":
        wide = None if for_layers else dtype
        return Rounding(lambda linear: grouped(linear, wide), of_stored=True, head=for_layers)
    return replace(AS_IT_IS, keeps_groups=for_layers and (with_tiles or dtype == torch.float32))


def grouped(linear: Linear, wide: torch.dtype | None = None) -> Linear:
    """The weight [..., out, in] as 4 bits by group, or its numbers then in a `wide` type."""
    codes, scale, minimum = in_groups(linear.weight)
    if wide is None:
        return Linear(codes, linear.bias, scale, minimum)
    return Linear(numbers(codes, scale, minimum).to(wide), linear.bias)


def in_bytes(linear: Linear) -> Linear:
    """Any weight by group as bytes for groups of 16, with minima."""
    assert linear.scale is not None
    minimum = torch.zeros_like(linear.scale) if linear.minimum is None else linear.minimum
    times = linear.weight.shape[1] // BYTES // linear.scale.shape[1]
    scale, minimum = (each.repeat_interleave(times, 1) for each in (linear.scale, minimum))
    return Linear(linear.weight.view(torch.int8), linear.bias, scale, minimum)


def quantise(linear: Linear) -> Linear:
    """Each row of the weight [..., out, in] as int8 times the row's scale, which is rounded
    to the model's dtype before it is divided by.
    """
    weight = linear.weight.float()
    scale = (
        (weight.abs().amax(-1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny).to(linear.weight.dtype)
    )
    rounded = (weight / scale.float()[..., None]).round_().clamp_(-LARGEST, LARGEST)
    return Linear(rounded.to(torch.int8), linear.bias, scale)


def _by_rows(linear: Linear) -> Linear:
    """`quantise`, some rows at a time: faster on a CPU, and what it needs for a while is small."""
    weight = linear.weight
    return quantise_rows(in_pieces(weight), weight.shape, weight.dtype)


def quantise_rows(pieces: Iterable[Tensor], shape: Sequence[int], dtype: torch.dtype) -> Linear:
    """`quantise`: a weight [out, in] of this shape, whose rows come in pieces of `dtype`."""
    weight, scale = torch.empty(shape, dtype=torch.int8), torch.empty(shape[0], dtype=dtype)
    first = 0
    for rows in pieces:
        some = slice(first, first + len(rows))
        made = quantise(Linear(rows, None))
        assert made.scale is not None
        weight[some], scale[some] = made.weight, made.scale
        first += len(rows)
    return Linear(weight, None, scale)
