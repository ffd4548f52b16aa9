"""The frequencies of a rotary embedding: the formulas of transformers, operation by operation, so that each
value is the same. Called by `weights`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from python_backends.checkpoint.ropes import Rope


def frequencies(rope: Rope, declared_tokens: int) -> Tensor:
    """[rotated / 2] float32, radians a position.

    `declared_tokens`, the longest sequence that may ever be asked for, alone decides between the short and
    the long factors of a longrope model: they are the same for every request and at every position.
    """
    steps = torch.arange(0, rope.rotated, 2, dtype=torch.int64).float() / rope.rotated
    if rope.type == "longrope":
        is_long = declared_tokens > rope.original_tokens
        factors = torch.tensor(rope.long_factors if is_long else rope.short_factors, dtype=torch.float32)
        return 1.0 / (factors * rope.theta**steps)
    if rope.type == "yarn":
        return _yarn(rope, rope.theta**steps)
    plain = 1.0 / (rope.theta**steps)
    if rope.type == "linear":
        return plain / rope.factor
    return _llama3(rope, plain) if rope.type == "llama3" else plain


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Long waves are stretched, short ones not, and those between in part."""
    wavelen = 2 * math.pi / plain
    longest, shortest = rope.original_tokens / rope.low, rope.original_tokens / rope.high
    stretched = torch.where(wavelen > longest, plain / rope.factor, plain)
    smooth = (rope.original_tokens / wavelen - rope.low) / (rope.high - rope.low)
    between = (1 - smooth) * stretched / rope.factor + smooth * stretched
    is_between = ~(wavelen < shortest) * ~(wavelen > longest)
    return torch.where(is_between, between, stretched)


def _yarn(rope: Rope, waves: Tensor) -> Tensor:
    """From plain frequencies to stretched ones, along a ramp over the dimensions."""
    low, high = _dimension(rope, rope.beta_fast), _dimension(rope, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotated - 1)
    if low == high:
        high += 0.001
    ramp = torch.clamp((torch.arange(rope.rotated // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    plain, stretched = 1.0 / waves, 1.0 / (rope.factor * waves)
    keeps = 1 - ramp
    return stretched * (1 - keeps) + plain * keeps


def _dimension(rope: Rope, rotations: float) -> float:
    """Which dimension turns so often within the original length."""
    turns = math.log(rope.original_tokens / (rotations * 2 * math.pi))
    return (rope.rotated * turns) / (2 * math.log(rope.theta))
