"""Reads a checkpoint's weights into the one form of `description`.

Owns nothing; which tensors there are is in `checkpoint.tensor_names`. Every weight is a plain tensor on the
model's device. Called by the engines at their start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from python_backends.checkpoint.expert_tensors import DOWN, ROUTER, UP
from python_backends.checkpoint.family import HeadNorm
from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.checkpoint.ropes import Rope
from python_backends.checkpoint.tensor_names import HEAD, embedding_name, layer_prefix, positions_name
from python_backends.engine.model.description import (
    Attention,
    Experts,
    FeedForward,
    Heads,
    Layer,
    Linear,
    Model,
    Norm,
    Rotary,
)
from python_backends.engine.model.frequencies import frequencies
from python_backends.engine.model.loading import Weights
from python_backends.linux.freed_memory import give_back_freed_memory


def describe(facts: ModelFacts, weights: Weights, declared_tokens: int) -> Model:
    """Everything but the layers. `declared_tokens`: see `frequencies`."""
    embedding, head = _ends(facts, weights)
    rotaries = [_rotary(rope, facts, declared_tokens) for rope in facts.ropes]
    return Model(
        heads=Heads(facts.num_heads, facts.num_kv_heads, facts.head_dim, facts.attention_scale),
        rotaries=tuple(Rotary(each.frequencies.to(weights.device), each.scale) for each in rotaries),
        num_layers=facts.num_layers,
        embedding=embedding,
        positions=weights.tensor(positions_name(facts)) if facts.family.positions else None,
        embedding_scale=_embedding_scale(facts, weights.dtype),
        norm=_norm(facts, weights, f"{facts.family.body}.{facts.family.final_norm}"),
        head=head,
        logit_scale=facts.logit_scale,
        logit_softcap=facts.logit_softcap,
    )


def take_layers(facts: ModelFacts, weights: Weights) -> Iterator[Layer]:
    """The layers in order, each read when it is asked for."""
    rows = qkv_rows(facts)
    for index in range(facts.num_layers):
        yield _layer(facts, weights, index, rows)
        give_back_freed_memory()


def head_order(dim: int, rotated: int, neighbours: bool) -> Tensor:
    """Which of a head's `dim` dimensions comes where, so that i and i + dim / 2 turn together: [dim] indices.

    The first `rotated` dimensions turn, dimension i with i + rotated / 2 or, for `neighbours`, 2i with 2i +
    1.
    """
    pairs = torch.arange(rotated).view(-1, 2).T if neighbours else torch.arange(rotated).view(2, -1)
    others = torch.arange(rotated, dim).view(2, -1)
    return torch.cat((pairs, others), 1).flatten()


def qkv_rows(facts: ModelFacts) -> Tensor:
    """Which row of the checkpoint's q, k and v, one after the other, comes where in the fused product."""
    dim, kv_heads = facts.head_dim, facts.num_kv_heads
    turned = facts.num_heads + kv_heads  # heads of queries and keys
    rows = torch.arange((turned + kv_heads) * dim).view(-1, dim)  # [heads, dim]
    if facts.family.qkv_by_head:
        rows = rows.view(-1, 3, dim).transpose(0, 1).reshape(-1, dim)
    return torch.cat((rows[:turned, _order(facts)], rows[turned:])).flatten()


def _order(facts: ModelFacts) -> Tensor:
    """As many dimensions turn in each layer."""
    return head_order(facts.head_dim, facts.ropes[0].rotated, facts.family.neighbours_turn)


def _layer(facts: ModelFacts, weights: Weights, index: int, rows: Tensor) -> Layer:
    family, prefix = facts.family, layer_prefix(facts, index)

    def norm(name: str) -> Norm | None:
        return _norm(facts, weights, f"{prefix}.{name}") if name else None

    return Layer(
        attention=_attention(facts, weights, index, rows),
        feed_forward=(
            _experts(facts, weights, prefix)
            if facts.has_experts_in(index)
            else _feed_forward(facts, weights, prefix)
        ),
        attention_norm=norm(family.attention_norm),
        attention_output_norm=norm(family.attention_output_norm),
        feed_forward_norm=norm(facts.feed_forward_norm),
        feed_forward_output_norm=norm(family.feed_forward_output_norm),
        parallel=facts.parallel,
        residual_scale=facts.residual_scale,
    )


def _feed_forward(facts: ModelFacts, weights: Weights, prefix: str) -> FeedForward:
    family = facts.family
    return FeedForward(
        _fused(weights, [f"{prefix}.mlp.{name}" for name in family.up], facts.feed_forward_bias),
        _fused(weights, [f"{prefix}.mlp.{family.down}"], facts.feed_forward_bias),
        facts.activation,
        family.gated,
    )


def _experts(facts: ModelFacts, weights: Weights, prefix: str) -> Experts:
    experts = facts.experts
    assert experts is not None
    return Experts(
        Linear(weights.tensor(f"{prefix}.{ROUTER}"), None),
        weights.experts(f"{prefix}.{UP}"),
        weights.experts(f"{prefix}.{DOWN}"),
        facts.activation,
        experts.chosen,
        experts.normalised,
    )


def _attention(facts: ModelFacts, weights: Weights, index: int, rows: Tensor) -> Attention:
    family, prefix = facts.family, f"{layer_prefix(facts, index)}.{facts.family.attention}"
    fused = _fused(weights, [f"{prefix}.{name}" for name in family.qkv], facts.qkv_bias)
    return Attention(
        qkv=_ordered(fused, rows),
        output=_fused(weights, [f"{prefix}.{family.output}"], facts.output_bias),
        q_norm=_head_norm(facts, weights, f"{prefix}.q_norm"),
        k_norm=_head_norm(facts, weights, f"{prefix}.k_norm"),
        rotary=facts.rotaries[index],
        window=facts.windows[index],
        softcap=facts.attention_softcap,
    )


def _ordered(fused: Linear, rows: Tensor) -> Linear:
    if torch.equal(rows, torch.arange(len(rows))):
        return fused
    rows = rows.to(fused.weight.device)
    bias, scale, minimum = (
        None if part is None else part[rows] for part in (fused.bias, fused.scale, fused.minimum)
    )
    return Linear(fused.weight[rows], bias, scale, minimum)


def _rotary(rope: Rope, facts: ModelFacts, declared_tokens: int) -> Rotary:
    turning = frequencies(rope, declared_tokens)
    return Rotary(functional.pad(turning, (0, facts.head_dim // 2 - len(turning))), rope.scale)


def _embedding_scale(facts: ModelFacts, dtype: torch.dtype) -> float:
    """A root is rounded, as transformers does it: to the type of the embedding."""
    scale = facts.embedding_scale
    return float(torch.tensor(scale, dtype=dtype).item()) if facts.family.embedding_root else scale


def _ends(facts: ModelFacts, weights: Weights) -> tuple[Tensor, Linear]:
    """The embedding and the head: of one weight where they are one, or a copy of it was stored."""
    name, other = f"{HEAD}.weight", embedding_name(facts)
    head, is_one = weights.head(name), weights.are_one(name, other)
    if not is_one and facts.is_tied and weights.device.type != "meta":
        is_one = _are_equal(head, weights.head(other))
    bias = weights.tensor(f"{HEAD}.bias") if facts.family.head_bias else None
    return head.weight if is_one else weights.tensor(other), replace(head, bias=bias)


def _are_equal(one: Linear, other: Linear) -> bool:
    pairs = ((one.weight, other.weight), (one.scale, other.scale), (one.minimum, other.minimum))
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def _norm(facts: ModelFacts, weights: Weights, name: str) -> Norm:
    family, weight = facts.family, weights.tensor(f"{name}.weight")
    at_least_float32 = torch.promote_types(weight.dtype, torch.float32)
    return Norm(
        kind=family.norm_kind,
        weight=1 + weight.to(at_least_float32) if family.norm_adds_one else weight,
        bias=weights.tensor(f"{name}.bias") if family.norm_bias else None,
        eps=facts.norm_eps,
    )


def _head_norm(facts: ModelFacts, weights: Weights, name: str) -> Norm | None:
    """A norm of queries or keys, whose dimensions within a head come in another order."""
    if facts.family.head_norm == HeadNorm.NONE:
        return None
    weight = weights.tensor(f"{name}.weight")
    if facts.family.norm_adds_one:
        weight = 1 + weight.to(torch.promote_types(weight.dtype, torch.float32))
    order = _order(facts).to(weight.device)
    return Norm(facts.family.norm_kind, weight.view(-1, len(order))[:, order].flatten(), None, facts.norm_eps)


def _fused(weights: Weights, names: Sequence[str], bias: bool) -> Linear:
    """Products of the same input as one."""
    parts = weights.products([f"{name}.weight" for name in names])
    biases = [weights.tensor(f"{name}.bias") for name in names] if bias else []
    return Linear(
        torch.cat([part.weight for part in parts]) if len(parts) > 1 else parts[0].weight,
        _joined(biases),
        _joined(part.scale for part in parts),
        _joined(part.minimum for part in parts),
    )


def _joined(parts: Iterable[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None
