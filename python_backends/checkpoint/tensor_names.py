"""Every tensor that a model has, by the names of transformers' modules, and where each lies in a source: one
list decides what is missing and what has no place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from python_backends.checkpoint.families import HeadNorm
from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.checkpoint.source import CheckpointError, Source

HEAD = "lm_head"
# computed by each model from its configuration; older checkpoints hold them
COMPUTED = re.compile(r"(rotary_emb\.inv_freq|attention\.bias|\.masked_bias)$")
NO_FLOAT = re.compile(r"[IU]\d+|BOOL|F4|F6_.*|F8_E8M0|C64|\?")
MOST_NAMES = 5
Shape = tuple[int, ...]


def embedding_name(facts: ModelFacts) -> str:
    return f"{facts.family.body}.{facts.family.embedding}.weight"


def layer_prefix(facts: ModelFacts, layer: int) -> str:
    return f"{facts.family.body}.layers.{layer}"


def shapes_of(facts: ModelFacts) -> dict[str, Shape]:
    """Of every tensor; a tied head too."""
    family, rows = facts.family, (facts.vocab_size, facts.hidden_size)
    found: dict[str, Shape] = {embedding_name(facts): rows}
    found |= _linear(HEAD, *rows, family.head_bias)
    found |= _norm(f"{family.body}.{family.final_norm}", facts.hidden_size, family.norm_bias)
    for layer in range(facts.num_layers):
        found |= {f"{layer_prefix(facts, layer)}.{name}": shape for name, shape in _layer(facts)}
    return found


def module_shapes(facts: ModelFacts) -> dict[str, tuple[int, int]]:
    """[out, in] of the linear modules of a layer, by their path in it."""
    family, hidden, width = facts.family, facts.hidden_size, facts.num_heads * facts.head_dim
    kv_width = facts.num_kv_heads * facts.head_dim
    outs = (width, kv_width, kv_width) if len(family.qkv) > 1 else (width + 2 * kv_width,)
    fused = len(family.up) == 1 and family.gated
    up = (2 * facts.intermediate_size if fused else facts.intermediate_size, hidden)
    return {
        **{f"{family.attention}.{name}": (out, hidden) for name, out in zip(family.qkv, outs, strict=True)},
        f"{family.attention}.{family.output}": (hidden, width),
        **{f"mlp.{name}": up for name in family.up},
        f"mlp.{family.down}": (hidden, facts.intermediate_size),
    }


def _layer(facts: ModelFacts) -> Iterator[tuple[str, Shape]]:
    family = facts.family
    biases = {family.output: facts.output_bias, **dict.fromkeys(family.qkv, facts.qkv_bias)}
    for path, (rows, columns) in module_shapes(facts).items():
        name = path.rpartition(".")[2]
        has_bias = facts.feed_forward_bias if path.startswith("mlp.") else biases[name]
        yield from _linear(path, rows, columns, has_bias).items()
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


def _linear(name: str, rows: int, columns: int, bias: bool) -> dict[str, Shape]:
    return {f"{name}.weight": (rows, columns), **({f"{name}.bias": (rows,)} if bias else {})}


def _norm(name: str, width: int, bias: bool) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), **({f"{name}.bias": (width,)} if bias else {})}


def located(facts: ModelFacts, source: Source) -> Mapping[str, str]:
    """The source's name of each tensor of the model; a tied head that is not stored is the embedding.

    Raises CheckpointError by the names of tensors that are missing, have another shape or no place.
    """
    if not source.tensors:
        raise CheckpointError(
            f"{source.path}: there are no weights: model.safetensors, its shards with their index, or"
            " pytorch_model.bin"
        )
    wanted = shapes_of(facts)
    prefix = _stored_prefix(facts, source.tensors)
    named = {_model_name(facts, prefix, name): name for name in source.tensors}
    found = {name: named[name] for name in wanted if name in named}
    if facts.is_tied and not _tie(facts, found):
        del wanted[f"{HEAD}.weight"]
    tensors = source.tensors
    _refuse(source, "the weights lack", wanted.keys() - found.keys())
    others = [found[name] for name, shape in wanted.items() if tensors[found[name]].shape != shape]
    _refuse(source, "of another shape than config.json says are", others)
    unknown = [name for name in tensors.keys() - found.values() if not COMPUTED.search(name)]
    _refuse(source, "this model has no place for", unknown)
    strange = [name for name in found.values() if NO_FLOAT.fullmatch(tensors[name].dtype)]
    _refuse(source, "this engine takes float weights only, not", strange)
    return found


def _tie(facts: ModelFacts, found: dict[str, str]) -> bool:
    """A head or an embedding that is not stored is the other one; whether there is one of them."""
    head, embedding = f"{HEAD}.weight", embedding_name(facts)
    either = found.get(embedding, found.get(head))
    if either is not None:
        found.setdefault(embedding, either)
        found.setdefault(head, either)
    return either is not None


def _stored_prefix(facts: ModelFacts, names: Collection[str]) -> str:
    """What the source puts before the names of the body, "" for a bare one: "model.", or
    "language_model.model." …
    """
    body, tail = f"{facts.family.body}.", f"{facts.family.embedding}.weight"
    prefixes = {name.removesuffix(tail) for name in names if name == tail or name.endswith(f".{tail}")}
    tail = f"layers.0.{next(iter(module_shapes(facts)))}.weight"
    prefixes |= {name.removesuffix(tail) for name in names if name == tail or name.endswith(f".{tail}")}
    return body if body in prefixes or len(prefixes) != 1 else prefixes.pop()


def _model_name(facts: ModelFacts, prefix: str, name: str) -> str:
    """Empty if it has no place."""
    family = facts.family
    if name.startswith(prefix) and prefix:
        return f"{family.body}.{name.removeprefix(prefix)}"
    above = prefix.removesuffix(f"{family.body}.")
    for head in family.heads:
        for field in ("weight", "bias"):
            if name in (f"{head}.{field}", f"{above}{head}.{field}"):
                return f"{HEAD}.{field}"
    return "" if prefix else f"{family.body}.{name}"


def _refuse(source: Source, what: str, names: Collection[str]) -> None:
    if names:
        more = len(names) - MOST_NAMES
        listed = ", ".join(sorted(names)[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        raise CheckpointError(f"{source.path}: {what} {listed}")
