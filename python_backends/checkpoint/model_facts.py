"""What the configuration of a served family says, all of it: an engine of ours reads nothing else.

What the file leaves open is filled in, what none of our engines computes is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from python_backends.checkpoint.directory import what_it_is
from python_backends.checkpoint.facts import Facts, common, family_of, stored_dtype, values_of
from python_backends.checkpoint.families import FAMILIES
from python_backends.checkpoint.family import Bias, Family, RotaryLayers, Windows
from python_backends.checkpoint.kinds import ACTIVATIONS, Activation
from python_backends.checkpoint.layer_kinds import FULL, SLIDING, rotary_flags
from python_backends.checkpoint.mixtures import ExpertFacts, expert_facts
from python_backends.checkpoint.quantisation import read_layout
from python_backends.checkpoint.ropes import Rope, ropes_of
from python_backends.checkpoint.source import Source
from python_backends.checkpoint.values import Values

OLDER = "compression_config"  # of checkpoints before compressed-tensors had its name
MOST_LAYERS = 10_000  # a larger number is a mistake, and a list of so many would fill the memory
NEEDED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts(Facts):
    """Of a family that our engines compute. All sizes are above 0."""

    family: Family
    intermediate_size: int
    experts: ExpertFacts | None
    is_tied: bool  # the head is the embedding, unless a head is stored
    qkv_bias: bool
    output_bias: bool
    feed_forward_bias: bool
    activation: Activation
    norm_eps: float
    parallel: bool
    ropes: tuple[Rope, ...]
    rotaries: tuple[int | None, ...]  # which of `ropes` each layer has; None: no positions
    windows: tuple[int | None, ...]  # of each layer
    attention_scale: float
    attention_softcap: float | None
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    logit_softcap: float | None

    @property
    def module_names(self) -> tuple[str, ...]:
        """The linear modules of a layer without experts, in the order in which they are computed; each name
        once.
        """
        family = self.family
        return tuple(dict.fromkeys((*family.qkv, family.output, *family.up, family.down)))

    def has_experts_in(self, layer: int) -> bool:
        return self.experts is not None and self.experts.layers[layer]

    @property
    def feed_forward_norm(self) -> str:
        """Its name; "": there is none."""
        shares = self.parallel and self.family.parallel_shares_norm
        return "" if shares else self.family.feed_forward_norm


def read_model_facts(source: Source) -> ModelFacts:
    """Raises CheckpointError."""
    values, family = values_of(source), family_of(source)
    shared = common(values, source)
    if not source.config:
        raise values.refusal(f"there is no config.json{what_it_is(source.path)}")
    if family is None:
        computed = f"this engine computes {', '.join(FAMILIES)}"
        raise values.refusal(f"architecture {shared['architecture'] or 'none'}: {computed}")
    _check(values, family, shared)
    stored_dtype(source)
    kinds = _layer_kinds(values, family, shared["num_layers"])
    windows = _windows(values, family, kinds)
    ropes = ropes_of(values, family, kinds, shared["head_dim"])
    return ModelFacts(
        **shared,
        family=family,
        intermediate_size=values.whole(
            "intermediate_size", default=family.widening * shared["hidden_size"] or None
        ),
        experts=expert_facts(values, family.mixture, shared["num_layers"]) if family.mixture else None,
        is_tied=values.flag("tie_word_embeddings"),
        qkv_bias=_bias(values, family.qkv_bias),
        output_bias=_bias(values, family.output_bias),
        feed_forward_bias=_bias(values, family.feed_forward_bias),
        activation=_activation(values, family),
        norm_eps=values.number(family.norm_eps),
        parallel=_bias(values, family.parallel_field or family.parallel),
        ropes=ropes,
        rotaries=_rotaries(values, family, kinds, windows, [rope.kind for rope in ropes]),
        windows=windows,
        attention_scale=_attention_scale(values, family, shared["head_dim"]),
        attention_softcap=_optional(values, family.attention_softcap),
        embedding_scale=(
            shared["hidden_size"] ** 0.5 if family.embedding_root else _scale(values, family.embedding_scale)
        ),
        residual_scale=_scale(values, family.residual_scale),
        logit_scale=_scale(values, family.logit_scale) / _scale(values, family.logit_divisor),
        logit_softcap=_optional(values, family.logit_softcap),
    )


def _check(values: Values, family: Family, shared: dict[str, Any]) -> None:
    architecture, said = shared["architecture"], values.get("model_type")
    if said not in (None, family.model_type, f"{family.model_type}_text"):
        raise values.refusal(f"model_type = {said!r:.100}: {architecture} is of {family.model_type}")
    _check_scheme(values)
    _check_refused(values, family, architecture)
    for name in NEEDED:
        values.whole(name)
    if shared["num_layers"] > MOST_LAYERS:
        raise values.refusal(f"num_hidden_layers = {shared['num_layers']}: must be at most {MOST_LAYERS}")
    if (eps := values.number(family.norm_eps)) < 0:
        raise values.refusal(f"{family.norm_eps} = {eps}: must be at least 0")
    _check_heads(values, shared)


def _check_refused(values: Values, family: Family, architecture: str) -> None:
    for name in family.refused:
        if values.get(name):
            raise values.refusal(f"{name} of architecture {architecture} is not computed by this engine")
    for name in family.needed:
        if values.get(name) is not None and not values.flag(name):
            raise values.refusal(f"{name} = false: not computed by this engine for {architecture}")


def _check_scheme(values: Values) -> None:
    read_layout(values.path, values.table)
    if values.get(OLDER) is not None:
        raise values.refusal(f"{OLDER}: only quantization_config is served")


def _check_heads(values: Values, shared: dict[str, Any]) -> None:
    hidden, heads, kv_heads = (shared[name] for name in ("hidden_size", "num_heads", "num_kv_heads"))
    if values.get("head_dim") is None and hidden % heads:
        raise values.refusal(f"hidden_size = {hidden}: must be a multiple of num_attention_heads = {heads}")
    if heads % kv_heads:
        raise values.refusal(f"num_attention_heads = {heads}: must be a multiple of {kv_heads} KV heads")
    if shared["head_dim"] % 2:
        raise values.refusal(f"head_dim = {shared['head_dim']}: must be even")


def _check_flags(values: Values, count: int) -> None:
    flags = values.get("no_rope_layers")
    if flags is None:
        values.whole("no_rope_layer_interval")
    elif not isinstance(flags, list) or len(flags) != count:
        raise values.refusal(f"no_rope_layers: must have a flag for each of {count} layers")


def _layer_kinds(values: Values, family: Family, count: int) -> list[str]:
    if family.rotary_layers == RotaryLayers.FLAGGED:
        _check_flags(values, count)
    said = values.get("layer_types")
    if said is None:
        for name in ("sliding_window_pattern", "max_window_layers"):
            if name in family.defaults:
                values.whole(name, 0)
        return family.layer_kinds(values.table, count)
    if not isinstance(said, list) or len(said) != count:
        raise values.refusal(f"layer_types: must name the type of each of {count} layers")
    if family.windows == Windows.NONE and SLIDING in said:
        raise values.refusal(f"layer type {SLIDING}: not computed for {family.model_type}")
    return [values.one_of("layer type", each, (FULL, SLIDING)) for each in said]


def _windows(values: Values, family: Family, kinds: Sequence[str]) -> tuple[int | None, ...]:
    is_used = not family.windows_field or values.flag(family.windows_field)
    window = values.whole("sliding_window", default=0) or None if is_used else None
    has_one = [
        family.windows == Windows.ALL or (family.windows == Windows.BY_LAYER_TYPE and kind == SLIDING)
        for kind in kinds
    ]
    return tuple(window if each else None for each in has_one)


def _rotaries(
    values: Values, family: Family, kinds: Sequence[str], windows: Sequence[int | None], known: Sequence[str]
) -> tuple[int | None, ...]:
    count, rule = len(kinds), family.rotary_layers
    if rule == RotaryLayers.FLAGGED:
        turns = rotary_flags(values.table, count)
    elif rule == RotaryLayers.SLIDING_OR_ALL and values.get("sliding_window") is None:
        turns = [True] * count
    elif rule in (RotaryLayers.SLIDING, RotaryLayers.SLIDING_OR_ALL):
        turns = [window is not None for window in windows]
    else:
        turns = [rule == RotaryLayers.ALL] * count
    indices = [known.index(kind) if kind in known else 0 for kind in kinds]
    return tuple(index if turn else None for index, turn in zip(indices, turns, strict=True))


def _bias(values: Values, rule: Bias) -> bool:
    return values.flag(rule) if isinstance(rule, str) else rule


def _activation(values: Values, family: Family) -> Activation:
    name = values.one_of(values.name(family.activation), values.get(family.activation), tuple(ACTIVATIONS))
    return Activation.GELU_TANH if name == "gelu" and family.gelu_is_tanh else ACTIVATIONS[name]


def _attention_scale(values: Values, family: Family, head_dim: int) -> float:
    if family.attention_scale:
        return _scale(values, family.attention_scale)
    scalar = values.number(family.attention_scalar) if family.attention_scalar else float(head_dim)
    if scalar <= 0:
        raise values.refusal(f"{family.attention_scalar} = {scalar:g}: must be above 0")
    return float(scalar**-0.5)


def _scale(values: Values, name: str) -> float:
    scale = values.number(name) if name else 1.0
    if scale == 0:
        raise values.refusal(f"{name} = 0: must be another number")
    return scale


def _optional(values: Values, name: str) -> float | None:
    return None if not name or values.get(name) is None else _scale(values, name)
