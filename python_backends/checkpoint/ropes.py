"""Rotary embeddings as a configuration says them, in old and new spellings: numbers only, no tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from python_backends.checkpoint.family import Family, rope_type
from python_backends.checkpoint.layer_kinds import FULL, SLIDING
from python_backends.checkpoint.values import Values

# Types whose angles don't depend on the request: "dynamic" changes beyond max_position_embeddings only, where
# nothing is served, and "longrope" chooses its factors once (`engine.model.frequencies`).
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
DEFAULT = {"rope_type": "default"}  # goes before an older `type` beside it, as in transformers
FROM_ORIGINAL = ("llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    kind: str  # of layers; "": all
    type: str
    theta: float
    rotated: int  # dimensions of a head that turn: the first ones
    factor: float
    scale: float  # of cos and sin
    original_tokens: int  # what the model was made for before it was stretched
    low: float = 1.0  # llama3: of wave lengths
    high: float = 4.0
    short_factors: tuple[float, ...] = ()  # longrope
    long_factors: tuple[float, ...] = ()
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    truncate: bool = True


def ropes_of(values: Values, family: Family, kinds: Sequence[str], head_dim: int) -> tuple[Rope, ...]:
    """One for all layers, or one for each kind of layers that there is. Raises CheckpointError."""
    theta = values.number(family.rotary_names[0], family.rope_theta)
    scaling, parameters = (_table(values, name) for name in ("rope_scaling", "rope_parameters"))
    if not family.kinds_have_rotaries:
        return (_rope(values, family, "", scaling or parameters, theta, head_dim),)
    same = {**DEFAULT, "rope_theta": theta}  # as without it: transformers leaves out what names no layer type
    if not parameters.keys() & {SLIDING, FULL} and not parameters.items() <= same.items():
        raise values.refusal(f"rope_parameters: must be by layer type, {FULL} or {SLIDING}")
    local = values.number("rope_local_base_freq", family.rope_theta)
    said = {
        SLIDING: (_table_in(values, parameters, SLIDING), local),
        FULL: ({**(_table_in(values, parameters, FULL) or DEFAULT), **scaling}, theta),
    }
    return tuple(
        _rope(values, family, kind, *said[kind], head_dim) for kind in (SLIDING, FULL) if kind in kinds
    )


def _table(values: Values, name: str) -> dict[str, Any]:
    return _table_in(values, values.table, name)


def _table_in(values: Values, table: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name)
    if not isinstance(found, dict | None):
        raise values.refusal(f"{name} = {found!r:.100}: must be an object")
    return found or {}


def _rope(
    values: Values, family: Family, kind: str, said: dict[str, Any], theta: float, head_dim: int
) -> Rope:
    rope = Values(values.path, said)
    if any(isinstance(each, dict) for each in said.values()):
        raise values.refusal(f"rope_parameters by layer type: not computed for {family.model_type}")
    name = rope.one_of("rope_type", rope_type(family, said), ROPE_TYPES)
    original = _original_tokens(values, rope, name, kind)
    rotated = _rotated(values, rope, family, head_dim)
    factor = rope.number("factor", _factor_by_default(values, name, original))
    theta = rope.number("rope_theta", theta)
    if theta <= 0:
        raise values.refusal(f"rope_theta = {theta}: must be above 0")
    if factor <= 0 or original <= 1:
        raise values.refusal(f"rope_type {name}: factor and original_max_position_embeddings are too small")
    return Rope(
        kind=kind,
        type=name,
        theta=theta,
        rotated=rotated,
        factor=factor,
        scale=_scale(rope, name, factor, original),
        original_tokens=original,
        low=rope.number("low_freq_factor", 1.0),
        high=rope.number("high_freq_factor", 4.0),
        short_factors=_factors(rope, "short_factor", rotated) if name == "longrope" else (),
        long_factors=_factors(rope, "long_factor", rotated) if name == "longrope" else (),
        beta_fast=rope.number("beta_fast", 32.0) or 32.0,
        beta_slow=rope.number("beta_slow", 1.0) or 1.0,
        truncate=said.get("truncate", True) is not False,
    )


def _original_tokens(values: Values, rope: Values, name: str, kind: str) -> int:
    """A field beside the parameters goes before those of all layers, as in transformers."""
    tokens = values.whole("max_position_embeddings")
    if name not in FROM_ORIGINAL:
        return tokens
    inside = rope.whole("original_max_position_embeddings", default=tokens)
    return inside if kind else values.whole("original_max_position_embeddings", default=inside)


def _rotated(values: Values, rope: Values, family: Family, head_dim: int) -> int:
    share = values.number(family.rotary_names[1], family.partial_rotary or 1.0)
    share = rope.number("partial_rotary_factor", share)
    if share != 1 and family.partial_rotary is None:
        raise values.refusal(f"partial_rotary_factor = {share}: not computed for {family.model_type}")
    rotated = int(head_dim * share)
    if not 0 < rotated <= head_dim or rotated % 2:
        raise values.refusal(f"{rotated} of a head's {head_dim} dimensions turn: must be even, and not none")
    return rotated


def _factor_by_default(values: Values, name: str, original: int) -> float | None:
    """None: there is none, and the field must be there."""
    if name in ("yarn", "longrope"):
        return values.whole("max_position_embeddings") / original
    return 1.0 if name == "default" else None


def _scale(rope: Values, name: str, factor: float, original: int) -> float:
    if name not in ("yarn", "longrope"):
        return 1.0
    if rope.get("attention_factor") is not None:
        return rope.number("attention_factor")
    if name == "longrope":
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    above, below = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if above and below:
        return _yarn_scale(factor, above) / _yarn_scale(factor, below)
    return _yarn_scale(factor, 1.0)


def _yarn_scale(factor: float, by: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0


def _factors(rope: Values, name: str, rotated: int) -> tuple[float, ...]:
    found = rope.get(name)
    numbers = found if isinstance(found, list) else []
    if len(numbers) != rotated // 2 or not all(
        isinstance(each, int | float) and not isinstance(each, bool) and each > 0 for each in numbers
    ):
        raise rope.refusal(f"{name}: must be {rotated // 2} numbers above 0")
    return tuple(map(float, numbers))
