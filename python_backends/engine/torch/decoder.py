"""The forward pass over one flat batch of tokens: everything but attention is one product for all rows.

Owns the weights of a described model. A block per layer, with one product for q, k and v, one for gate and
up; what its family does differently is chosen when it is built. Proved equal to transformers' blocks in
tests/cpu. Knows nothing of slots or sampling. Called by the torch engine.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.model.description import Experts, Heads, Layer, Model, Rotary
from python_backends.engine.torch.adapters.slot_adapters import add_adapters
from python_backends.engine.torch.attention import attend_operator, score_operator
from python_backends.engine.torch.attention_spans import LayerAttention, Rotation
from python_backends.engine.torch.experts import ChosenExperts
from python_backends.engine.torch.operators import (
    ResidualNorm,
    activation_operator,
    head_norm_operator,
    norm_operator,
    scale_operator,
    softcap_operator,
)
from python_backends.engine.torch.projection import projection_of
from python_backends.engine.torch.step_batch import StepBatch


class AnyProjection(Protocol):
    @property
    def weight(self) -> Tensor:
        """The plain weight [out, in]."""
        ...

    def forward(self, x: Tensor) -> Tensor:
        """[rows, in] → [rows, out]"""
        ...


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What is the same for all layers of a step."""

    batch: StepBatch
    rotations: list[Rotation]  # of each rotary embedding of the model
    cache: KVCache


class Block:
    """One decoder layer. `forward` takes the residual stream x [tokens, hidden] and what the layer before
    adds to it. It adds that in place, and returns what this layer adds.
    """

    def __init__(self, layer: Layer, index: int, heads: Heads, dtype: torch.dtype, kernels: bool) -> None:
        attention, feed_forward = layer.attention, layer.feed_forward
        self.window = attention.window
        self.projections: dict[str, AnyProjection] = {
            "qkv": projection_of(attention.qkv, kernels),
            "o": projection_of(attention.output, kernels),
        }
        self.experts: ChosenExperts | None = None
        self._activate = activation_operator(feed_forward, kernels)
        if isinstance(feed_forward, Experts):
            self.experts = ChosenExperts(feed_forward, self._activate, kernels)
        else:
            self.projections |= {
                "up": projection_of(feed_forward.up, kernels),
                "down": projection_of(feed_forward.down, kernels),
            }
        self._attention = LayerAttention(index, heads, score_operator(attention.softcap), attention.softcap)
        self._rotary = attention.rotary
        self.norm = ResidualNorm(layer.attention_norm, dtype, kernels)
        self._attend_rows = attend_operator(kernels)
        self._attention_output_norm = norm_operator(layer.attention_output_norm, dtype)
        self._head_norm = head_norm_operator(attention, heads, dtype)
        self.feed_forward_norm = ResidualNorm(layer.feed_forward_norm, dtype, kernels)
        self._feed_forward_output_norm = norm_operator(layer.feed_forward_output_norm, dtype)
        self._shares_norm = layer.feed_forward_norm is None
        self.residual_scale = layer.residual_scale
        self._is_parallel = layer.parallel

    def replace(
        self,
        norm: ResidualNorm,
        feed_forward_norm: ResidualNorm,
        projections: Mapping[str, AnyProjection],
    ) -> None:
        """Others that compute the same, and more: training keeps what they see."""
        self.norm, self.feed_forward_norm = norm, feed_forward_norm
        self.projections = dict(projections)

    def forward(self, x: Tensor, added: Tensor | None, step: StepInputs) -> Tensor:
        normed = self.norm.after(x, added, self.residual_scale)
        attended = self._attend(normed, step)
        if self._is_parallel:
            fed = self._feed_forward(normed if self._shares_norm else self.feed_forward_norm.of(x), step)
            return attended.add_(fed)
        attended = self._attention_output_norm(attended)
        fed = self._feed_forward(self.feed_forward_norm.after(x, attended, self.residual_scale), step)
        return self._feed_forward_output_norm(fed)

    def _attend(self, normed: Tensor, step: StepInputs) -> Tensor:
        qkv = self._project("qkv", normed, step)
        self._head_norm(qkv)
        rotation = None if self._rotary is None else step.rotations[self._rotary]
        spans = step.batch.spans[self.window]
        attended = self._attend_rows(qkv, rotation, spans, self._attention, step.cache)
        return self._project("o", attended, step)

    def _feed_forward(self, normed: Tensor, step: StepInputs) -> Tensor:
        if self.experts is not None:
            return self.experts.forward(normed)
        return self._project("down", self._activate(self._project("up", normed, step)), step)

    def _project(self, name: str, x: Tensor, step: StepInputs) -> Tensor:
        y = self.projections[name].forward(x)
        adapters = step.batch.adapters
        return add_adapters(y, x, self._attention.index, name, adapters) if adapters else y


class Decoder:
    """A described model and its layers, for sequences of up to `num_positions`
    tokens; `kernels`: with ours for attention and between products.
    """

    def __init__(
        self,
        model: Model,
        layers: Iterable[Layer],
        num_positions: int,
        kernels: bool = False,
        state_layer: int = 0,
    ) -> None:
        """`state_layer`: after so many layers `forward` keeps hidden states."""
        self.embedding, self._positions, self.heads = model.embedding, model.positions, model.heads
        dtype = self.embedding.dtype
        self.tables = [rotary_tables(rotary, num_positions, dtype) for rotary in model.rotaries]
        self.head = projection_of(model.head, kernels)
        self.blocks = [Block(layer, index, model.heads, dtype, kernels) for index, layer in enumerate(layers)]
        self._kernels, self._state_layer = kernels, state_layer
        self.windows = tuple(dict.fromkeys(block.window for block in self.blocks))
        self.norm = ResidualNorm(model.norm, dtype, kernels)
        (self.residual_scale,) = {block.residual_scale for block in self.blocks}
        self._scale_embedding = scale_operator(model.embedding_scale)
        self._scale_logits = scale_operator(model.logit_scale)
        self._cap_logits = softcap_operator(model.logit_softcap)

    def twin(self) -> Decoder:
        """The same weights in blocks that may be changed by `Block.replace`, while this one serves."""
        twin = copy.copy(self)
        twin.blocks = [copy.copy(block) for block in self.blocks]
        return twin

    def forward(self, batch: StepBatch, cache: KVCache) -> Tensor:
        """Runs all tokens of a step; the logits [sampled, vocabulary] of
        the rows that sample, and of no others.
        """
        return self.forward_with_states(batch, cache, None)[0]

    def forward_with_states(
        self, batch: StepBatch, cache: KVCache, state_rows: Tensor | slice | None
    ) -> tuple[Tensor, Tensor | None]:
        """The same, and the residual stream [rows, hidden] of `state_rows` [rows] after `state_layer` layers,
        float32.
        """
        x, step, added = self.embedded(batch), self.inputs(batch, cache), None
        states: Tensor | None = None
        for index, block in enumerate(self.blocks):
            if state_rows is not None and added is not None and index == self._state_layer:
                states = x[state_rows].float() + self.residual_scale * added[state_rows].float()
            added = block.forward(x, added, step)
        normed = self.norm.after(x, added, self.residual_scale)
        if batch.sampling_rows is not None:
            normed = normed[batch.sampling_rows]
        if not len(normed):  # chunks in the middle of prompts only
            return normed.new_empty((0, len(self.embedding))), states
        return self._cap_logits(self._scale_logits(self.head.forward(normed))), states

    def embedded(self, batch: StepBatch) -> Tensor:
        """The residual stream [tokens, hidden] before the first layer."""
        x = self._scale_embedding(functional.embedding(batch.tokens, self.embedding))
        return x if self._positions is None else x + self._positions[batch.positions]

    def inputs(self, batch: StepBatch, cache: KVCache) -> StepInputs:
        rotations = self.tables if self._kernels else self.rotations(batch.positions)
        return StepInputs(batch, rotations, cache)

    def rotations(self, positions: Tensor) -> list[Rotation]:
        """Of tokens at `positions` [tokens], for each rotary embedding of the model."""
        return [(cos[positions, None], sin[positions, None]) for cos, sin in self.tables]


def rotary_tables(rotary: Rotary, num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, dim]; the first half of sin negated (see `rotate`)."""
    cos, sin = rotary.tables(num_positions)
    return torch.cat((cos, cos), 1).to(dtype), torch.cat((-sin, sin), 1).to(dtype)
