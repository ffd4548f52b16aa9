"""Takes the weights out of transformers' loaded model and writes them down in the one form of `description`.

Owns nothing; what families call their modules is in `families`. Every weight is a plain tensor on the model's
device. Called by the engines at their start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from python_backends.engine.model import families
from python_backends.engine.model.description import (
    Attention,
    FeedForward,
    Heads,
    Layer,
    Linear,
    Model,
    Norm,
    Rotary,
)
from python_backends.engine.model.families import ACTIVATIONS, Family


def describe(model: Any, declared_tokens: int) -> Model:
    """Everything but the layers of transformers' causal language model.

    `declared_tokens`, the longest sequence that may ever be asked for, alone decides between the short and
    the long factors of a longrope model: they are the same for every request and at every position.
    """
    config, body, family = model.config, model.base_model, families.family_of(model.config)
    embedding = model.get_input_embeddings()
    attention = getattr(body.layers[0], family.attention)
    return Model(
        heads=Heads(
            config.num_attention_heads,
            families.num_kv_heads(config),
            families.head_dim(config),
            attention.scaling,
        ),
        rotaries=tuple(
            _rotary(body.rotary_emb, config, kind, declared_tokens)
            for kind in families.rope_parameters(config)
        ),
        num_layers=len(body.layers),
        embedding=embedding.weight.detach(),
        embedding_scale=_embedding_scale(embedding, config, family),
        norm=_norm(getattr(body, family.final_norm), family),
        head=_linear(model.get_output_embeddings()),
        logit_scale=_field(config, family.logit_scale, 1.0) / _field(config, family.logit_divisor, 1.0),
        logit_softcap=_field(config, family.logit_softcap, None),
    )


def take_layers(model: Any) -> Iterator[Layer]:
    """The layers in order. A layer of `model` loses its weights when the next one is requested."""
    config, body, family = model.config, model.base_model, families.family_of(model.config)
    order = dimension_order(model)
    for layer, window, rotary in zip(
        body.layers, families.windows(config), families.rotaries(config), strict=True
    ):
        yield Layer(
            attention=_attention(getattr(layer, family.attention), config, order, window, rotary),
            feed_forward=_feed_forward(layer.mlp, config, family),
            attention_norm=_named_norm(layer, family.attention_norm, family),
            attention_output_norm=_named_norm(layer, family.attention_output_norm, family),
            feed_forward_norm=_named_norm(layer, family.feed_forward_norm, family),
            feed_forward_output_norm=_named_norm(layer, family.feed_forward_output_norm, family),
            parallel=_field(config, family.parallel_field, family.parallel),
            residual_scale=_field(config, family.residual_scale, 1.0),
        )
        layer.to("meta")


def head_order(dim: int, rotated: int, neighbours: bool) -> Tensor:
    """Which of a head's `dim` dimensions comes where, so that i and i + dim / 2 turn together: [dim] indices.

    The first `rotated` dimensions turn, dimension i with i + rotated / 2 or, for `neighbours`, 2i with 2i +
    1.
    """
    pairs = torch.arange(rotated).view(-1, 2).T if neighbours else torch.arange(rotated).view(2, -1)
    others = torch.arange(rotated, dim).view(2, -1)
    return torch.cat((pairs, others), 1).flatten()


def _field(config: Any, name: str, default: Any) -> Any:
    return getattr(config, name) if name else default


def _embedding_scale(embedding: Any, config: Any, family: Family) -> float:
    """As transformers rounds it: in the dtype of the embedding."""
    scale = getattr(embedding, "scalar_embed_scale", None)
    return (
        torch.tensor(scale, dtype=embedding.weight.dtype).item()
        if scale
        else _field(config, family.embedding_scale, 1.0)
    )


def _rotary(module: Any, config: Any, kind: str, declared_tokens: int) -> Rotary:
    """The rotary embedding of layers of one `kind`, "" for all."""
    parameters = families.rope_parameters(config)[kind]
    frequencies = _of_kind(module, kind, "original_inv_freq").float()
    if (
        parameters["rope_type"] == "longrope"
        and declared_tokens > parameters["original_max_position_embeddings"]
    ):
        frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](
            config, frequencies.device, declared_tokens, kind or None
        )
    still = families.head_dim(config) // 2 - len(frequencies)
    return Rotary(functional.pad(frequencies, (0, still)), float(_of_kind(module, kind, "attention_scaling")))


def _of_kind(module: Any, kind: str, name: str) -> Any:
    """The field `name` of transformers' rotary embedding, for layers of one `kind`."""
    return getattr(module, f"{kind}_{name}" if kind else name)


def _attention(module: Any, config: Any, order: Tensor, window: int | None, rotary: int | None) -> Attention:
    family = families.family_of(config)
    return Attention(
        qkv=_qkv(module, config, order),
        output=_linear(getattr(module, family.output)),
        q_norm=_ordered_norm(getattr(module, "q_norm", None), family, order),
        k_norm=_ordered_norm(getattr(module, "k_norm", None), family, order),
        rotary=rotary,
        window=window,
        softcap=_field(config, family.attention_softcap, None),
    )


def _qkv(module: Any, config: Any, order: Tensor) -> Linear:
    """All query heads, all key heads, all value heads; dimensions of queries and keys in `order`."""
    fused = _fused([getattr(module, name) for name in families.family_of(config).qkv])
    rows = qkv_rows(config, order)
    if len(rows) != len(fused.weight):
        raise ValueError(
            f"q, k and v have {len(fused.weight)} rows together, and {len(rows)} by the number of heads in"
            " the configuration: `families` reads another field than this family has"
        )
    if torch.equal(rows, torch.arange(len(rows))):
        return fused
    rows = rows.to(fused.weight.device)
    return Linear(fused.weight[rows], None if fused.bias is None else fused.bias[rows])


def qkv_rows(config: Any, order: Tensor) -> Tensor:
    """Which row of the checkpoint's q, k and v, one after the other, comes where in the fused product."""
    dim, num_kv_heads = families.head_dim(config), families.num_kv_heads(config)
    turned = config.num_attention_heads + num_kv_heads  # heads of queries and keys
    rows = torch.arange((turned + num_kv_heads) * dim).view(-1, dim)  # [heads, dim]
    if families.family_of(config).qkv_by_head:
        rows = rows.view(-1, 3, dim).transpose(0, 1).reshape(-1, dim)
    return torch.cat((rows[:turned, order], rows[turned:])).flatten()


def dimension_order(model: Any) -> Tensor:
    """`head_order` of transformers' causal language model. As many dimensions turn in each of its layers."""
    config = model.config
    kind = next(iter(families.rope_parameters(config)))
    rotated = 2 * len(_of_kind(model.base_model.rotary_emb, kind, "original_inv_freq"))
    return head_order(families.head_dim(config), rotated, families.family_of(config).neighbours_turn)


def _feed_forward(module: Any, config: Any, family: Family) -> FeedForward:
    up = _fused([getattr(module, name) for name in family.up])
    activation = ACTIVATIONS[getattr(config, family.activation)]
    return FeedForward(up, _linear(getattr(module, family.down)), activation, family.gated)


def _named_norm(layer: Any, name: str, family: Family) -> Norm | None:
    module = getattr(layer, name) if name else None
    return None if module is None else _norm(module, family)


def _norm(module: Any, family: Family) -> Norm:
    weight = module.weight.detach()
    at_least_float32 = torch.promote_types(weight.dtype, torch.float32)
    bias = getattr(module, "bias", None)
    eps = getattr(module, "variance_epsilon", None) or module.eps
    return Norm(
        kind=family.norm_kind,
        weight=1 + weight.to(at_least_float32) if family.norm_adds_one else weight.clone(),
        bias=None if bias is None else bias.detach().clone(),
        eps=float(eps),
    )


def _ordered_norm(module: Any, family: Family, order: Tensor) -> Norm | None:
    """A norm of queries or keys, whose dimensions within a head come in `order`."""
    if module is None:
        return None
    norm = _norm(module, family)
    weight = norm.weight.view(-1, len(order))[:, order.to(norm.weight.device)].flatten()
    return Norm(norm.kind, weight, None, norm.eps)


def _linear(module: Any) -> Linear:
    return Linear(module.weight.detach(), None if module.bias is None else module.bias.detach())


def _fused(modules: list[Any]) -> Linear:
    """Products of the same input as one."""
    if len(modules) == 1:
        return _linear(modules[0])
    biases = [module.bias.detach() for module in modules if module.bias is not None]
    return Linear(
        torch.cat([module.weight.detach() for module in modules]), torch.cat(biases) if biases else None
    )
