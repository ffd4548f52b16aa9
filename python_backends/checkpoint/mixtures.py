"""Mixtures of experts: how a family names them in its configuration and in its files, and what a
configuration says of them.

An expert is a gated feed-forward part of its own. A router gives each token a probability for each expert,
and the token goes through the few with the greatest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from python_backends.checkpoint.values import Values

COUNT = ("num_local_experts", "num_experts")  # transformers takes either; defaults have the second


def all_layers(_: Values, count: int) -> tuple[bool, ...]:
    return (True,) * count


def some_layers(values: Values, count: int) -> tuple[bool, ...]:
    """Each layer of `decoder_sparse_step`, the last of them, but those of `mlp_only_layers`."""
    step, dense = values.whole("decoder_sparse_step"), values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(each) is int for each in dense):
        raise values.refusal("mlp_only_layers: must be a list of whole numbers")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(count))


@dataclass(frozen=True, slots=True)
class Mixture:
    """Of a family: names of fields of the configuration, and of modules in files that have a tensor for each
    expert.
    """

    width: str = "intermediate_size"
    normalised: bool | str = "norm_topk_prob"
    layers: Callable[[Values, int], tuple[bool, ...]] = all_layers
    block: str = "mlp"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class ExpertFacts:
    count: int
    chosen: int  # experts of a token
    width: int
    normalised: bool  # the probabilities of the chosen ones are divided by their sum
    layers: tuple[bool, ...]  # which layers have experts; the others have one feed-forward part


def expert_facts(values: Values, mixture: Mixture, num_layers: int) -> ExpertFacts:
    """Raises CheckpointError."""
    count, chosen = _count(values), values.whole("num_experts_per_tok")
    if chosen > count:
        raise values.refusal(f"num_experts_per_tok = {chosen}: there are {count} experts")
    rule = mixture.normalised
    return ExpertFacts(
        count=count,
        chosen=chosen,
        width=values.whole(mixture.width),
        normalised=values.flag(rule) if isinstance(rule, str) else rule,
        layers=mixture.layers(values, num_layers),
    )


def _count(values: Values) -> int:
    said = [name for name in COUNT if values.get(name) is not None]
    if not said:
        raise values.refusal(f"there is no {' or '.join(COUNT)}")
    return values.whole(said[0])
