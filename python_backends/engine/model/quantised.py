"""Weights of layers rounded to int8: a scale for each output channel, nothing else: no zero point, no
calibration.

Owns nothing: turns a layer of the description into one whose products have int8 weights, layer by layer, so
that a model is never held twice. Embedding and head stay as they are: often they are one tensor, and the head
decides between tokens. So does the router of experts: it decides between these. Called by the engines at
their start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from python_backends.engine.model.description import Layer, Linear

LARGEST = 127


def quantise_if_asked(layers: Iterable[Layer], weights: str) -> Iterable[Layer]:
    """`layers` as the setting model.weights wants them kept."""
    return map(quantised, layers) if weights == "int8" else layers


def quantised(layer: Layer) -> Layer:
    attention, feed_forward = layer.attention, layer.feed_forward
    up, down = quantise(feed_forward.up), quantise(feed_forward.down)
    return replace(
        layer,
        attention=replace(attention, qkv=quantise(attention.qkv), output=quantise(attention.output)),
        feed_forward=replace(feed_forward, up=up, down=down),
    )


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
