"""The forward pass over one flat batch of tokens: everything but attention is one product for all rows.

Owns the weights of a described model. A block per layer, with one product for q, k and v, one for gate and up; what its family does
differently is chosen when it is built. Proved equal to transformers' blocks in tests/cpu. Knows nothing of slots or sampling. Called
by the torch engine.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.attention import LayerAttention, attend, rotate, score_operator
from python_backends.engine.description import Heads, Layer, Linear, Model, Rotary
from python_backends.engine.kv_cache import KVCache
from python_backends.engine.operators import ACTIVATIONS, head_norm_operator, norm_operator, scale_operator, softcap_operator
from python_backends.engine.projection import Int8Projection, Projection, project
from python_backends.engine.step_batch import StepBatch

Rotation = tuple[Tensor, Tensor]  # cos and sin [tokens, 1, dim]


class Block:
    """One decoder layer. `forward` adds its output to x [tokens, hidden], whose dtype is `dtype`."""

    def __init__(self, layer: Layer, index: int, heads: Heads, dtype: torch.dtype) -> None:
        attention, feed_forward = layer.attention, layer.feed_forward
        self.heads = heads
        self.window = attention.window
        self.projections = {
            "qkv": _projection(attention.qkv),
            "o": _projection(attention.output),
            "up": _projection(feed_forward.up),
            "down": _projection(feed_forward.down),
        }
        self._attention = LayerAttention(index, heads, score_operator(attention.softcap), attention.softcap)
        self._rotary = attention.rotary
        self._attention_norm = norm_operator(layer.attention_norm, dtype)
        self._attention_output_norm = norm_operator(layer.attention_output_norm, dtype)
        self._head_norm = head_norm_operator(attention, heads, dtype)
        self._feed_forward_norm = norm_operator(layer.feed_forward_norm, dtype)
        self._feed_forward_output_norm = norm_operator(layer.feed_forward_output_norm, dtype)
        self._activation = ACTIVATIONS[feed_forward.activation]
        self._feed_forward = self._gated if feed_forward.gated else self._plain
        self._shares_norm = layer.feed_forward_norm is None
        self._residual_scale = layer.residual_scale
        self.forward = self._parallel if layer.parallel else self._sequential

    def _sequential(self, x: Tensor, batch: StepBatch, rotations: list[Rotation], cache: KVCache, adapters: None) -> None:
        attended = self._attend(self._attention_norm(x), batch, rotations, cache, adapters)
        x.add_(self._attention_output_norm(attended), alpha=self._residual_scale)
        fed = self._feed_forward(self._feed_forward_norm(x), adapters)
        x.add_(self._feed_forward_output_norm(fed), alpha=self._residual_scale)

    def _parallel(self, x: Tensor, batch: StepBatch, rotations: list[Rotation], cache: KVCache, adapters: None) -> None:
        normed = self._attention_norm(x)
        attended = self._attend(normed, batch, rotations, cache, adapters)
        fed = self._feed_forward(normed if self._shares_norm else self._feed_forward_norm(x), adapters)
        x.add_(attended.add_(fed), alpha=self._residual_scale)

    def _attend(self, x: Tensor, batch: StepBatch, rotations: list[Rotation], cache: KVCache, adapters: None) -> Tensor:
        qkv, heads = project(x, self, "qkv", adapters), self.heads
        tokens = len(qkv)
        self._head_norm(qkv)
        if self._rotary is not None:
            turned = heads.query_width + heads.kv_width
            rotate(qkv[:, :turned].view(tokens, -1, heads.head_dim), *rotations[self._rotary])
        cache.write(self._attention.index, batch.write, qkv[:, heads.query_width :].view(tokens, 2, -1, heads.head_dim))
        return project(attend(qkv, batch.spans[self.window], self._attention, cache), self, "o", adapters)

    def _gated(self, x: Tensor, adapters: None) -> Tensor:
        gate, up = project(x, self, "up", adapters).chunk(2, dim=-1)
        return project(self._activation(gate).mul_(up), self, "down", adapters)

    def _plain(self, x: Tensor, adapters: None) -> Tensor:
        return project(self._activation(project(x, self, "up", adapters)), self, "down", adapters)


class Decoder:
    """A described model and its layers, for sequences of up to `num_positions` tokens."""

    def __init__(self, model: Model, layers: Iterable[Layer], num_positions: int) -> None:
        self.embedding = model.embedding
        dtype = self.embedding.dtype
        self.tables = [rotary_tables(rotary, num_positions, dtype) for rotary in model.rotaries]
        self.projections = {"head": _projection(model.head)}
        self.blocks = [Block(layer, index, model.heads, dtype) for index, layer in enumerate(layers)]
        self.windows = tuple(dict.fromkeys(block.window for block in self.blocks))
        self._norm = norm_operator(model.norm, dtype)
        self._scale_embedding = scale_operator(model.embedding_scale)
        self._scale_logits = scale_operator(model.logit_scale)
        self._cap_logits = softcap_operator(model.logit_softcap)

    def forward(self, batch: StepBatch, cache: KVCache, adapters: None = None) -> Tensor:
        """Runs all tokens of a step; the logits [sampled, vocabulary] of the rows that sample, and of no others."""
        x = self._scale_embedding(functional.embedding(batch.tokens, self.embedding))  # [tokens, hidden]
        rotations = self.rotations(batch.positions)
        for block in self.blocks:
            block.forward(x, batch, rotations, cache, adapters)
        if batch.sampling_rows is not None:
            x = x[batch.sampling_rows]
        if not len(x):  # chunks in the middle of prompts only
            return x.new_empty((0, len(self.embedding)))
        return self._cap_logits(self._scale_logits(project(self._norm(x), self, "head", adapters)))

    def rotations(self, positions: Tensor) -> list[Rotation]:
        """Of tokens at `positions` [tokens], for each rotary embedding of the model."""
        return [(cos[positions, None], sin[positions, None]) for cos, sin in self.tables]


def rotary_tables(rotary: Rotary, num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, dim]; the first half of sin negated (see `rotate`)."""
    cos, sin = rotary.tables(num_positions)
    return torch.cat((cos, cos), 1).to(dtype), torch.cat((-sin, sin), 1).to(dtype)


def _projection(linear: Linear) -> Projection | Int8Projection:
    if linear.scale is None:
        return Projection(linear.weight, linear.bias)
    return Int8Projection(linear.weight, linear.scale, linear.bias)
