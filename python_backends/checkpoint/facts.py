"""One reading of a configuration for all who need some of it: door, choice of the engine, engines, training.

`read_facts` says what every reader may ask of any checkpoint, `model_facts.read_model_facts` what only an
engine of ours needs. Owns nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from python_backends.checkpoint.families import FAMILIES
from python_backends.checkpoint.family import Family, rope_type
from python_backends.checkpoint.source import CheckpointError, Source
from python_backends.checkpoint.values import Values

CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
OTHER_TYPES = "float32"  # of GGUF: what they are computed to


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """0 or "": the checkpoint doesn't say."""

    path: Path
    architecture: str
    vocab_size: int  # rows of the embedding
    context: int  # in tokens, where the settings don't say how many
    longest: int  # at most so many may be asked for
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    end_ids: tuple[int, ...]
    has_experts: bool


def read_facts(source: Source) -> Facts:
    """Raises CheckpointError, by the field that can't be read."""
    return Facts(**common(values_of(source), source))


def config_path(source: Source, name: str = "config.json") -> Path:
    """What an error names: the file of that name, or the one file of a checkpoint that is one."""
    return source.path if source.path.is_file() else source.path / name


def values_of(source: Source) -> Values:
    """The configuration, over what its family takes for granted."""
    table, family = source.config, family_of(source)
    if family is None:
        return Values(config_path(source), table)
    names = family.field_names
    defaults = {names.get(name, name): value for name, value in family.defaults.items()}
    if table.get("rope_parameters") is None:  # null is not said
        table = {name: value for name, value in table.items() if name != "rope_parameters"}
    return Values(config_path(source), {**defaults, **table}, names)


def common(values: Values, source: Source) -> dict[str, Any]:
    """The fields of `Facts`."""
    family = family_of(source)
    context, longest = _contexts(values, family)
    generation = Values(config_path(source, "generation_config.json"), source.generation)
    hidden, heads = values.whole("hidden_size", default=0), values.whole("num_attention_heads", default=0)
    return {
        "path": source.path,
        "architecture": architecture_of(source),
        "vocab_size": values.whole("vocab_size", 0, default=0),
        "context": context,
        "longest": longest,
        "num_layers": values.whole("num_hidden_layers", default=0),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": values.whole("num_key_value_heads", default=heads),
        "head_dim": values.whole("head_dim", default=hidden // heads if heads else 0),
        "end_ids": tuple(dict.fromkeys([*_ends(generation), *_ends(values)])),
        "has_experts": family is not None and family.mixture is not None,
    }


def architecture_of(source: Source) -> str:
    """The first that the configuration names; by its type where it names none; "": not said."""
    named = source.config.get("architectures")
    if isinstance(named, list) and named:
        return f"{' '.join(str(named[0]).split()):.100}"
    found = source.config.get("model_type")
    return next((name for name, family in FAMILIES.items() if family.model_type == found), "")


def family_of(source: Source) -> Family | None:
    return FAMILIES.get(architecture_of(source))


def stored_dtype(source: Source) -> str:
    """Of the weights, as PyTorch names it: what the configuration says, or the type that most of them have.
    Raises CheckpointError.
    """
    table = source.config
    said = table.get("dtype") if table.get("dtype") is not None else table.get("torch_dtype")
    if said is None:
        sizes: Counter[str] = Counter()
        for stored in source.tensors.values():
            sizes[DTYPES.get(stored.dtype, OTHER_TYPES)] += prod(stored.shape)
        return sizes.most_common(1)[0][0] if sizes else "float32"
    if said not in DTYPES.values():
        path = config_path(source)
        known = ", ".join(DTYPES.values())
        raise CheckpointError(f"{path}: dtype = {' '.join(repr(said).split()):.100}: must be one of {known}")
    return str(said)


def _contexts(values: Values, family: Family | None) -> tuple[int, int]:
    """Without a setting, and the most that may be set. A rotary embedding that is stretched by a factor
    reaches as far as the original context times the factor; for `linear` the files don't tell whether
    `max_position_embeddings` is that already, so only a setting goes beyond it.
    """
    tokens = next((values.whole(name) for name in CONTEXT_NAMES if values.get(name)), 0)
    scaling = values.get("rope_scaling") or values.get("rope_parameters")
    is_fixed = family and (family.kinds_have_rotaries or family.positions)
    longest = values.whole(family.longest, default=0) if family and family.longest else 0
    if not isinstance(scaling, dict) or not tokens or is_fixed:
        return tokens, max(tokens, longest)
    rope, kind = Values(values.path, scaling), rope_type(family, scaling)
    factor = max(1.0, rope.number("factor", 1.0)) if kind in ("yarn", "linear") else 1.0
    if kind == "yarn":
        inside = rope.whole("original_max_position_embeddings", default=tokens)
        original = values.whole("original_max_position_embeddings", default=inside)
        tokens = max(tokens, int(original * factor))
        return tokens, tokens
    return tokens, max(int(tokens * factor), longest)


def _ends(values: Values) -> list[int]:
    entry = values.get("eos_token_id")
    given = entry if isinstance(entry, list) else [entry]
    ids = [values.checked("eos_token_id", each, -(2**31)) for each in given if each is not None]
    return [each for each in ids if each >= 0]
