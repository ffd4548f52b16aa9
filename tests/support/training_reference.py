"""Gradients by torch's autograd through our own operators over whole sequences, with nothing cut, kept in
blocks or carried: what tiles must equal. And what PEFT computes for the same adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.model.description import Layer, Linear, Model
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.torch.adapters.modules import names_of
from python_backends.engine.torch.decoder import rotary_tables
from python_backends.engine.torch.operators import norm_operator
from python_backends.engine.torch.training.adapter import Adapter, targets_of
from python_backends.engine.torch.training.model import TrainedModel, trained_model
from python_backends.engine.torch.training.small_operators import SmallOperators, softcapped
from python_backends.finetuning.cursor import PackCursor
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.packs import packed
from python_backends.finetuning.pruning import first_layer, plans
from python_backends.nouns.training import PROJECTIONS, AdapterShape, Keep, Pack
from tests.support.model_source import read_from
from tests.support.tiny_models import VOCABULARY, build

Gradients = dict[str, Tensor]


def random_pack(lengths: Sequence[int], seed: int = 3) -> Pack:
    """Two thirds of the tokens are learned."""
    generator = np.random.default_rng(seed)
    return packed(
        [
            Example(
                generator.integers(0, VOCABULARY, length).astype(np.int32), generator.random(length) < 0.67
            )
            for length in lengths
        ]
    )


def transformed(name: str, dtype: torch.dtype) -> Any:
    """transformers' model, as it is after it was saved and loaded."""
    model = build(name).to(dtype)
    model.config.architectures = [type(model).__name__]
    return model


def trained(name: str, dtype: torch.dtype, shape: AdapterShape | None = None) -> tuple[TrainedModel, Adapter]:
    """A tiny model and an adapter of all modules, or of `shape`, as `drawn` makes it."""
    model = trained_model(*read_from(build(name).to(dtype)), 384)
    return model, drawn(model, shape or every_module(model))


def every_module(model: TrainedModel) -> AdapterShape:
    return AdapterShape(3, 6.0, names_of(model.modules))


def drawn(model: TrainedModel, shape: AdapterShape) -> Adapter:
    """An adapter whose B is not zero."""
    adapter = model.new_adapter(shape)
    adapter.draw(5)
    generator = torch.Generator().manual_seed(6)
    for key, weight in adapter.weights.items():
        if ".lora_B." in key:
            weight.copy_(0.1 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return adapter


def targets(model: TrainedModel, adapter: Adapter) -> dict[int, frozenset[str]]:
    return dict.fromkeys(range(len(model.facts)), targets_of(model.modules, adapter.shape))


def by_tiles(
    model: TrainedModel,
    adapter: Adapter,
    pack: Pack,
    cut: tuple[int, int],
    keep: Keep = Keep.PRODUCTS,
) -> tuple[float, Gradients]:
    """Loss and gradients with tiles of at most `cut` tokens, forward and backward. Forward, another layer
    cuts otherwise.
    """
    trained_layers = targets(model, adapter)
    model.install(adapter, plans(model.facts, trained_layers, keep))
    run = model.begin(pack, pack.num_labels)
    cursor = PackCursor(len(pack.tokens), len(model.facts), first_layer(trained_layers))
    loss, num_layers_done = 0.0, 0
    while not cursor.is_forward_done:
        run.forward(tile := cursor.take_forward(cut[num_layers_done % 2]))
        num_layers_done = tile.layer + (tile.last == len(pack.tokens))
    while not cursor.is_loss_done:
        loss += run.loss(*cursor.take_loss(cut[1]))
    while not cursor.is_done:
        run.backward(cursor.take_backward(cut[1]))
    return loss, model.gradients()


def whole(name: str, adapter: Adapter, pack: Pack, dtype: torch.dtype) -> tuple[float, Gradients]:
    """Loss and gradients by autograd, each sequence at once."""
    facts, weights = read_from(build(name).to(dtype))
    description = describe(facts, weights, 384)
    layers = list(take_layers(facts, weights))
    factors = [
        {part: adapter.factors(layer, part, dtype) for part in PROJECTIONS} for layer in range(len(layers))
    ]
    leaves = [
        {part: (each.a.requires_grad_(), each.b.requires_grad_()) for part, each in by_name.items() if each}
        for by_name in factors
    ]
    loss = torch.zeros((), dtype=dtype)
    for begin, end in zip(pack.bounds, pack.bounds[1:], strict=False):
        tokens, labels = (
            torch.from_numpy(each[begin:end].astype(np.int64)) for each in (pack.tokens, pack.labels)
        )
        x = functional.embedding(tokens, description.embedding) * description.embedding_scale
        if description.positions is not None:
            x = x + description.positions[: len(tokens)]
        tables = [
            tuple(part[: len(tokens), None] for part in rotary_tables(rotary, len(tokens), dtype))
            for rotary in description.rotaries
        ]
        for layer, ab in zip(layers, leaves, strict=True):
            x = _layer(layer, SmallOperators(layer, description.heads, dtype), ab, x, tables)
        loss = loss + _entropy(description, x, labels) / pack.num_labels
    loss.backward()  # type: ignore[no-untyped-call]
    found: Gradients = {}
    for layer, (by_name, ab) in enumerate(zip(factors, leaves, strict=True)):
        for part, (a, b) in ab.items():
            each = by_name[part]
            assert each is not None
            assert a.grad is not None
            assert b.grad is not None
            each.a_gradient, each.b_gradient = a.grad, b.grad
            found |= adapter.gradients(layer, part, each)
    return float(loss.detach()), found


def _linear(x: Tensor, linear: Linear, factors: tuple[Tensor, Tensor] | None) -> Tensor:
    y = functional.linear(x, linear.weight, linear.bias)
    return y if factors is None else y + (x @ factors[0].T) @ factors[1].T


def _layer(layer: Layer, small: SmallOperators, ab: Any, x: Tensor, tables: Any) -> Tensor:
    """As engine/model/description.py defines it."""
    heads, r = small.heads, layer.residual_scale
    normed = small.norm(x)
    qkv = _linear(normed, layer.attention.qkv, ab.get("qkv"))
    width = heads.query_width + heads.kv_width
    placed = small.place(qkv[:, :width], None if small.rotary is None else tables[small.rotary])
    keys, values = (
        part.view(len(x), heads.num_kv_heads, heads.head_dim).transpose(0, 1)
        for part in (placed[:, heads.query_width :], qkv[:, width:])
    )
    attended = small.attend(
        placed[:, : heads.query_width], keys, values, _mask(len(x), small.window, x.dtype)
    )
    attended = r * small.attended_norm(_linear(attended, layer.attention.output, ab.get("o")))
    x2 = x if layer.parallel else x + attended
    inner = normed if small.shares_norm else small.feed_forward_norm(x2)
    up = small.gate(_linear(inner, layer.feed_forward.up, ab.get("up")))
    fed = r * small.fed_norm(_linear(up, layer.feed_forward.down, ab.get("down")))
    return x2 + attended + fed if layer.parallel else x2 + fed


def _mask(count: int, window: int | None, dtype: torch.dtype) -> Tensor:
    seen = torch.ones(count, count).tril()
    if window is not None:
        seen = seen.triu(1 - window)
    return torch.zeros(count, count, dtype=dtype).masked_fill_(seen == 0, float("-inf"))


def _entropy(model: Model, x: Tensor, labels: Tensor) -> Tensor:
    normed = norm_operator(model.norm, x.dtype)(x)
    logits = functional.linear(normed, model.head.weight, model.head.bias) * model.logit_scale
    return functional.cross_entropy(softcapped(logits, model.logit_softcap), labels, reduction="sum")


def difference(found: Gradients, expected: Gradients) -> float:
    """The largest, as a share of the largest gradient."""
    assert found.keys() == expected.keys()
    largest = max(float(each.abs().max()) for each in expected.values())
    assert largest > 1e-3
    return max(float((found[key] - expected[key]).abs().max()) for key in expected) / largest
