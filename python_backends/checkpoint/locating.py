"""Where each tensor of a model lies in a source: one list decides what is missing and what has no place."""

from __future__ import annotations

import re
from collections.abc import Collection

from python_backends.checkpoint.expert_tensors import Pieces, expert_spellings
from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.checkpoint.source import CheckpointError, Source
from python_backends.checkpoint.tensor_names import (
    HEAD,
    embedding_name,
    layer_prefix,
    module_shapes,
    shapes_of,
)

# computed by each model from its configuration; older checkpoints hold them
COMPUTED = re.compile(r"(rotary_emb\.inv_freq|\.(attn|attention)\.bias|\.masked_bias)$")
NO_FLOAT = re.compile(r"[IU]\d+|BOOL|F4|F6_.*|F8_E8M0|C64|\?")
MOST_NAMES = 5
Names = tuple[str, ...]  # of tensors that are one, their rows one after the other


def located(facts: ModelFacts, source: Source) -> dict[str, Names]:
    """The source's tensors of each tensor of the model; a tied head that is not stored is the embedding.

    Raises CheckpointError by the names of tensors that are missing, have another shape or no place.
    """
    if not source.tensors:
        raise CheckpointError(
            f"{source.path}: there are no weights: model.safetensors, its shards with their index, or"
            " pytorch_model.bin"
        )
    tensors = {name: each for name, each in source.tensors.items() if not _is_left_out(facts, name)}
    prefix = _stored_prefix(facts, tensors)
    stored = {_model_name(facts, prefix, name): name for name in tensors}
    wanted = {name: _spelling(ways, stored) for name, ways in spellings(facts).items()}
    found = {
        name: tuple(stored[piece] for piece in pieces)
        for name, pieces in wanted.items()
        if pieces.keys() <= stored.keys()
    }
    if facts.is_tied and not _tie(facts, found):
        del wanted[f"{HEAD}.weight"]
    lacking = [pieces.keys() - stored.keys() for name, pieces in wanted.items() if name not in found]
    _refuse(source, "the weights lack", set().union(*lacking))
    shapes = {
        name: shape
        for model_name, pieces in wanted.items()
        for name, shape in zip(found[model_name], pieces.values(), strict=True)
    }
    others = [name for name, shape in shapes.items() if tensors[name].shape != shape]
    _refuse(source, "of another shape than config.json says are", others)
    others = [name for name in tensors.keys() - shapes.keys() if not COMPUTED.search(name)]
    unknown = [name for name in others if not _adds_zero(source, name)]
    _refuse(source, "this model has no place for", unknown)
    strange = [name for name in shapes if NO_FLOAT.fullmatch(tensors[name].dtype)]
    _refuse(source, "this engine takes float weights only, not", strange)
    return found


def _is_left_out(facts: ModelFacts, name: str) -> bool:
    """Of what reads images."""
    return name.removeprefix("model.").startswith(facts.family.left_out)


def _adds_zero(source: Source, name: str) -> bool:
    """AutoGPTQ has written a bias for each module, though the model has none."""
    is_bias = name.endswith(".bias") and len(source.tensors[name].shape) == 1
    return is_bias and not source.read(name).any()


def spellings(facts: ModelFacts) -> dict[str, list[Pieces]]:
    """In which ways a source may have each tensor of the model."""
    found = {name: [{name: shape}] for name, shape in shapes_of(facts).items()}
    for layer in filter(facts.has_experts_in, range(facts.num_layers)):
        prefix = layer_prefix(facts, layer)
        for name, ways in expert_spellings(facts).items():
            found[f"{prefix}.{name}"] = [
                {f"{prefix}.{piece}": shape for piece, shape in pieces.items()} for pieces in ways
            ]
    return found


def _spelling(ways: list[Pieces], stored: Collection[str]) -> Pieces:
    """The one that lacks the smallest part."""
    return min(ways, key=lambda pieces: sum(name not in stored for name in pieces) / len(pieces))


def _tie(facts: ModelFacts, found: dict[str, Names]) -> bool:
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
    tail = f"{facts.family.layers}.0.{next(iter(module_shapes(facts)))}.weight"
    prefixes |= {name.removesuffix(tail) for name in names if name == tail or name.endswith(f".{tail}")}
    return body if body in prefixes or len(prefixes) != 1 else prefixes.pop()


def _model_name(facts: ModelFacts, prefix: str, name: str) -> str:
    """Empty if it has no place."""
    family = facts.family
    if name.startswith(prefix) and prefix:
        return f"{family.body}.{name.removeprefix(prefix)}"
    above = "".join(prefix[:-1].rpartition(".")[:2])
    for head in family.heads:
        for field in ("weight", "bias"):
            if name in (f"{head}.{field}", f"{above}{head}.{field}"):
                return f"{HEAD}.{field}"
    return "" if prefix else f"{family.body}.{name}"


def _refuse(source: Source, what: str, names: Collection[str]) -> None:
    if names:
        more = len(names) - MOST_NAMES
        shown = [f"{' '.join(name.split()):.200}" for name in sorted(names)[:MOST_NAMES]]
        listed = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        raise CheckpointError(f"{source.path}: {what} {listed}")
