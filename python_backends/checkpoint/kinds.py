"""Kinds of norms and activations: words for what a family computes."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType


class NormKind(StrEnum):
    RMS = "rms"
    LAYER = "layer"  # subtracts the mean as well


class Activation(StrEnum):
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    RELU_SQUARED = "relu_squared"


ACTIVATIONS = MappingProxyType(  # by the names of configurations
    {
        "silu": Activation.SILU,
        "swish": Activation.SILU,
        "gelu": Activation.GELU,
        "gelu_new": Activation.GELU_TANH,
        "gelu_fast": Activation.GELU_TANH,
        "gelu_pytorch_tanh": Activation.GELU_TANH,
        "relu": Activation.RELU,
        "relu2": Activation.RELU_SQUARED,
    }
)
