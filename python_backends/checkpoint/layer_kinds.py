"""Which layers see a sliding window and which see everything, where config.json has no `layer_types`: one
rule for each family, as transformers has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"
# of the configuration with its defaults, and of the number of layers
LayerKinds = Callable[[Mapping[str, Any], int], list[str]]


def all_full(_: Mapping[str, Any], count: int) -> list[str]:
    return [FULL] * count


def all_sliding(config: Mapping[str, Any], count: int) -> list[str]:
    return _named(config["sliding_window"] is not None for _ in range(count))


def every(period: int, field: str = "") -> LayerKinds:
    """Each layer of `period` but the last slides; `field` of the configuration may say another period."""

    def kinds(config: Mapping[str, Any], count: int) -> list[str]:
        of = config[field] if field else period
        return _named(of > 0 and (layer + 1) % of != 0 for layer in range(count))

    return kinds


def first_of_four_full(_: Mapping[str, Any], count: int) -> list[str]:
    return _named(layer % 4 != 0 for layer in range(count))


def last_ones(config: Mapping[str, Any], count: int) -> list[str]:
    """From `max_window_layers` on, where a window is used at all."""
    slides = config["use_sliding_window"] and config["sliding_window"] is not None
    return _named(bool(slides) and layer >= config["max_window_layers"] for layer in range(count))


def without_positions(config: Mapping[str, Any], count: int) -> list[str]:
    """Those without rotary embedding, where a window is used at all."""
    slides = config["use_sliding_window"] and config["sliding_window"] is not None
    return _named(bool(slides) and not flag for flag in rotary_flags(config, count))


def rotary_flags(config: Mapping[str, Any], count: int) -> list[bool]:
    """Of `no_rope_layers`, in which a 1 means that the layer has positions."""
    flags, interval = config.get("no_rope_layers"), config["no_rope_layer_interval"]
    if flags is None:
        return [(layer + 1) % interval != 0 for layer in range(count)]
    return [bool(flag) for flag in flags]


def _named(slides: Iterable[bool]) -> list[str]:
    return [SLIDING if each else FULL for each in slides]
