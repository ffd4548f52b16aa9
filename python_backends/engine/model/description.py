"""What a decoder-only language model computes, and its weights: plain data from which an engine is built.

It depends neither on how a checkpoint is stored (`weights` writes it) nor on how a model is run (`decoder`
reads it for torch). What families store differently but compute in the same way has one form here:

* q, k and v are one product, and so are gate and up, whatever the checkpoint had.
* Rotary embedding turns dimension i of a head together with i + head_dim / 2. Families that pair neighbours,
  or turn only a part of a head, have the rows of q and k reordered: attention sees only q·k, which any common
  order leaves as it is. Pairs that don't turn have frequency 0.
* A norm's weight is the factor itself: where a family stores w for 1 + w, one is added, in float32.

With h = attention_norm(x), r = residual_scale and every norm that is None left out, a layer computes

    x ← x + r · attention_output_norm(attention(h));  x ← x + r ·
    feed_forward_output_norm(feed_forward(feed_forward_norm(x)))

or, where `parallel`, x ← x + r · attention(h) + r · feed_forward(feed_forward_norm(x)), with h itself where
feed_forward_norm is None.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from python_backends.checkpoint.kinds import Activation as Activation
from python_backends.checkpoint.kinds import NormKind as NormKind


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """y = x·Wᵀ + b, with W = `weight`, or each row of `weight` times its scale, or each group of neighbours
    in a row times its scale, plus its minimum where there are minima.
    """

    weight: Tensor  # [out, in]; int8 where there are scales, 0 to 15 of uint8 where a group has 4 bits
    bias: Tensor | None  # [out]
    scale: Tensor | None = None  # [out] in the model's dtype, or [out, groups]
    minimum: Tensor | None = None  # [out, groups]; with their scales of float16 or float32


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """Over the last dimension of [..., width]; computed in float32."""

    kind: NormKind
    weight: Tensor  # [width] factors; float32 where they are applied before rounding to the model's dtype
    bias: Tensor | None  # [width]
    eps: float


@dataclass(frozen=True, slots=True)
class Heads:
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float  # of q·k

    @property
    def group(self) -> int:
        """Query heads that share a KV head; they are next to each other."""
        return self.num_query_heads // self.num_kv_heads

    @property
    def query_width(self) -> int:
        return self.num_query_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """x[i], x[i + dim/2] ← x[i]·cos − x[i + dim/2]·sin, x[i + dim/2]·cos + x[i]·sin, for i < dim/2."""

    frequencies: Tensor  # [head_dim / 2] float32, radians a position; 0: a pair that doesn't turn
    scale: float  # of cos and sin, in pairs that turn

    def tables(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin [positions, head_dim / 2], float32."""
        positions = torch.arange(num_positions, device=self.frequencies.device).float()
        angles = positions[:, None] * self.frequencies
        return torch.where(self.frequencies == 0, 1.0, angles.cos() * self.scale), angles.sin() * self.scale


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Causal. `q_norm` and `k_norm` come before the rotary embedding, over each head or over all heads at
    once, as wide as they are.
    """

    qkv: Linear  # rows: all query heads, all key heads, all value heads
    output: Linear
    q_norm: Norm | None  # [head_dim] or [query_heads · head_dim]
    k_norm: Norm | None
    rotary: int | None  # which of the model's; None: no positions
    window: int | None  # a token sees itself and the window − 1 before it; None: all before it
    softcap: float | None  # scores ← softcap · tanh(scores / softcap), before the mask


@dataclass(frozen=True, slots=True, eq=False)
class FeedForward:
    """down(activation(gate) · up) with gate and up one product, or down(activation(up)) where not `gated`."""

    up: Linear  # where gated: all rows of gate, then all of up
    down: Linear
    activation: Activation
    gated: bool


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """Gated feed-forward parts, of which each token goes through `chosen`: those with the greatest
    probability, softmax(router) in float32. What they give is added up, each times its probability; where
    `normalised`, the probabilities of the chosen ones are first divided by their sum.

    `up` and `down` have an expert after the other: weights [experts, out, in], scales [experts, out].
    """

    router: Linear  # [experts, hidden]
    up: Linear  # of each expert: all rows of gate, then all of up
    down: Linear
    activation: Activation
    chosen: int
    normalised: bool


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    attention: Attention
    feed_forward: FeedForward | Experts
    attention_norm: Norm | None
    attention_output_norm: Norm | None
    feed_forward_norm: Norm | None
    feed_forward_output_norm: Norm | None
    parallel: bool
    residual_scale: float


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """Everything but the layers, which `weights.take_layers` gives one by one,
    so that a model need not be in memory twice.
    """

    heads: Heads
    rotaries: tuple[Rotary, ...]
    num_layers: int
    embedding: Tensor  # [vocabulary, hidden]; int8 where it is a head's weight that has scales
    positions: Tensor | None  # [context, hidden], added to the scaled embedding of a token there
    embedding_scale: float
    norm: Norm
    head: Linear  # to the logits; its weight may be the embedding itself
    logit_scale: float
    logit_softcap: float | None

    @property
    def is_tied(self) -> bool:
        """Whether the head's weight is the embedding itself."""
        return self.head.weight.data_ptr() == self.embedding.data_ptr()
