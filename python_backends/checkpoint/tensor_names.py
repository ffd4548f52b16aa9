"""Every tensor that a model has, by the names of transformers' modules, with its shape."""

from __future__ import annotations

from collections.abc import Iterator

from python_backends.checkpoint.expert_tensors import Shape, expert_shapes
from python_backends.checkpoint.family import HeadNorm
from python_backends.checkpoint.model_facts import ModelFacts

HEAD = "lm_head"


def embedding_name(facts: ModelFacts) -> str:
    return f"{facts.family.body}.{facts.family.embedding}.weight"


def positions_name(facts: ModelFacts) -> str:
    """Of their table; empty where there is none."""
    return f"{facts.family.body}.{facts.family.positions}.weight" if facts.family.positions else ""


def layer_prefix(facts: ModelFacts, layer: int) -> str:
    return f"{facts.family.body}.{facts.family.layers}.{layer}"


def shapes_of(facts: ModelFacts) -> dict[str, Shape]:
    """Of every tensor; a tied head too."""
    family, rows = facts.family, (facts.vocab_size, facts.hidden_size)
    found: dict[str, Shape] = {embedding_name(facts): rows}
    if name := positions_name(facts):
        found[name] = (facts.context, facts.hidden_size)
    found |= _linear(HEAD, *rows, family.head_bias)
    found |= _norm(f"{family.body}.{family.final_norm}", facts.hidden_size, family.norm_bias)
    for layer in range(facts.num_layers):
        found |= {f"{layer_prefix(facts, layer)}.{name}": shape for name, shape in _layer(facts, layer)}
    return found


def module_shapes(facts: ModelFacts) -> dict[str, tuple[int, int]]:
    """[out, in] of the linear modules that every layer has, by their path in it."""
    return attention_shapes(facts) | ({} if facts.experts else feed_forward_shapes(facts))


def attention_shapes(facts: ModelFacts) -> dict[str, tuple[int, int]]:
    """Of one layer."""
    family, hidden, width = facts.family, facts.hidden_size, facts.num_heads * facts.head_dim
    kv_width = facts.num_kv_heads * facts.head_dim
    outs = (width, kv_width, kv_width) if len(family.qkv) > 1 else (width + 2 * kv_width,)
    return {
        **{f"{family.attention}.{name}": (out, hidden) for name, out in zip(family.qkv, outs, strict=True)},
        f"{family.attention}.{family.output}": (hidden, width),
    }


def feed_forward_shapes(facts: ModelFacts) -> dict[str, tuple[int, int]]:
    """Of a layer without experts."""
    family, hidden = facts.family, facts.hidden_size
    fused = len(family.up) == 1 and family.gated
    up = (2 * facts.intermediate_size if fused else facts.intermediate_size, hidden)
    return {
        **{f"mlp.{name}": up for name in family.up},
        f"mlp.{family.down}": (hidden, facts.intermediate_size),
    }


def _layer(facts: ModelFacts, layer: int) -> Iterator[tuple[str, Shape]]:
    family = facts.family
    biases = {family.output: facts.output_bias, **dict.fromkeys(family.qkv, facts.qkv_bias)}
    for path, (rows, columns) in attention_shapes(facts).items():
        bias = biases[path.rpartition(".")[2]]
        yield from _linear(path, rows, columns, bias, family.inputs_first).items()
    if facts.has_experts_in(layer):
        yield from expert_shapes(facts).items()
    else:
        for path, (rows, columns) in feed_forward_shapes(facts).items():
            yield from _linear(path, rows, columns, facts.feed_forward_bias, family.inputs_first).items()
    if family.head_norm != HeadNorm.NONE:
        for name, heads in (("q_norm", facts.num_heads), ("k_norm", facts.num_kv_heads)):
            width = facts.head_dim * (1 if family.head_norm == HeadNorm.HEAD else heads)
            yield f"{family.attention}.{name}.weight", (width,)
    for norm in (
        family.attention_norm,
        family.attention_output_norm,
        facts.feed_forward_norm,
        family.feed_forward_output_norm,
    ):
        if norm:
            yield from _norm(norm, facts.hidden_size, family.norm_bias).items()


def _linear(name: str, rows: int, columns: int, bias: bool, inputs_first: bool = False) -> dict[str, Shape]:
    weight = (columns, rows) if inputs_first else (rows, columns)
    return {f"{name}.weight": weight, **({f"{name}.bias": (rows,)} if bias else {})}


def _norm(name: str, width: int, bias: bool) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), **({f"{name}.bias": (width,)} if bias else {})}
