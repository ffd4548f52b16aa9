"""Weights of layers rounded to int8, with a scale for each output channel, or to 4 bits by group
(`four_bits`); without calibration.

Owns nothing: turns a layer of the description into one whose products have such weights, layer by layer, so
that a model is never held twice. The head becomes int8 at most, with layers in C++: it decides between
tokens. The router of experts, which decides between these, stays as it is. Called by the engines at their
start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from python_backends.engine.model.description import Layer, Linear
from python_backends.engine.model.four_bits import in_groups, numbers

LARGEST = 127


def quantise_if_asked(
    layers: Iterable[Layer], weights: str, wide: torch.dtype | None = None
) -> Iterable[Layer]:
    """`layers` as the setting model.weights wants them kept. `wide`: the type in which one that does not
    multiply 4 bits gets the same numbers.
    """
    if weights == "int8":
        return (quantised(layer, quantise) for layer in layers)
    if weights == "int4":
        return (quantised(layer, lambda linear: grouped(linear, wide)) for layer in layers)
    return layers


def quantised(layer: Layer, to: Callable[[Linear], Linear]) -> Layer:
    attention, feed_forward = layer.attention, layer.feed_forward
    return replace(
        layer,
        attention=replace(attention, qkv=to(attention.qkv), output=to(attention.output)),
        feed_forward=replace(feed_forward, up=to(feed_forward.up), down=to(feed_forward.down)),
    )


def grouped(linear: Linear, wide: torch.dtype | None = None) -> Linear:
    """The weight [..., out, in] as 4 bits by group, or its numbers then in a `wide` type."""
    codes, scale, minimum = in_groups(linear.weight)
    if wide is None:
        return Linear(codes, linear.bias, scale, minimum)
    return Linear(numbers(codes, scale, minimum).to(wide), linear.bias)


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
