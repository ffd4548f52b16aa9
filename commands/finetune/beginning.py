"""Which adapter a new job trains: of the options of `submit`, or that of `--from`, from which it goes on."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

from python_backends.engine.adapter_directory import CONFIG, NAME, numbered
from python_backends.engine.protocol import BadAdapterError
from python_backends.finetuning.job_fields import LIMITS
from python_backends.finetuning.saved_states import State
from python_backends.nouns.training import AdapterShape
from python_backends.settings import Settings

RANK, ALPHA, TARGETS, ADAPTER = 8, 16.0, "all", "adapter"  # where nothing is asked for


def beginning(settings: Settings, asked: argparse.Namespace) -> tuple[AdapterShape, State]:
    """And the weights to begin with; none: they are drawn. ValueError names the option that is wrong."""
    if asked.start is None:
        rank = RANK if asked.rank is None else asked.rank
        alpha = ALPHA if asked.alpha is None else asked.alpha
        return AdapterShape(rank, alpha, targets(settings, asked.targets or TARGETS)), {}
    from python_backends.engine.torch.adapters.beginning import read_beginning  # brings torch along

    adapters = settings.adapters_directory
    try:
        found = read_beginning(settings, place(asked.start, adapters))
    except BadAdapterError as error:
        raise ValueError(f"--from {asked.start}: {error}") from error
    (least, most), alpha = LIMITS["alpha"], found.shape.alpha
    if not least <= alpha <= most:
        raise ValueError(f"--from {asked.start}: alpha = {alpha:g}: must be between {least:g} and {most:g}")
    check_agrees(asked, found.shape, targets(settings, asked.targets or ",".join(found.shape.modules)))
    return found.shape, found.weights


def check_agrees(asked: argparse.Namespace, shape: AdapterShape, chosen: tuple[str, ...]) -> None:
    """Rank, alpha and targets come from the adapter of --from; ValueError if others are asked for."""
    is_same: dict[str, tuple[Any, Any, bool]] = {
        "rank": (asked.rank, shape.rank, asked.rank in (None, shape.rank)),
        "alpha": (asked.alpha, shape.alpha, asked.alpha is None or math.isclose(asked.alpha, shape.alpha)),
        "targets": (asked.targets, ",".join(shape.modules), set(chosen) == set(shape.modules)),
    }
    for name, (given, has, agrees) in is_same.items():
        if not agrees:
            has = f"{has:g}" if isinstance(has, float) else has
            raise ValueError(f"--{name} {given}: the adapter of --from {asked.start} has {has}; leave it out")


def name_of(asked: argparse.Namespace) -> str:
    """The name under which the adapter is served: --name, or that of the served adapter of --from."""
    if asked.name is not None:
        return str(asked.name)
    if asked.start is None or _is_adapter(Path(asked.start)):
        return ADAPTER
    served = asked.start.partition("@")[0]
    return served if NAME.fullmatch(served) else ADAPTER


def place(start: str, adapters: Path | None) -> Path:
    """The directory of an adapter: `start` itself, or the served version that it names. ValueError."""
    if _is_adapter(Path(start)):
        return Path(start)
    name, at, version = start.partition("@")
    if adapters is None or not NAME.fullmatch(name):
        hint = "" if adapters else "; the name of a served adapter needs adapters.directory"
        raise ValueError(f"--from {start}: it is no directory with {CONFIG}{hint}")
    if not at and _is_adapter(adapters / name):
        return adapters / name
    found = [path for path in numbered(adapters / name) if not at or version == path.name]
    if not found:
        raise ValueError(f"--from {start}: neither a directory with {CONFIG} nor an adapter in {adapters}")
    return found[-1]


def targets(settings: Settings, names: str) -> tuple[str, ...]:
    """Names of modules; ValueError if the model has none of a name, or is not trained."""
    from python_backends.engine.model.loading import facts_of  # brings torch along

    facts = facts_of(settings)
    if facts.experts:
        raise ValueError(f"{facts.path}: {facts.architecture}: mixtures of experts are not trained")
    known = facts.module_names
    chosen = known if names == TARGETS else tuple(dict.fromkeys(names.split(",")))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"--targets {','.join(unknown)}: must be among {', '.join(known)}, or all")
    return tuple(chosen)


def _is_adapter(path: Path) -> bool:
    return os.path.lexists(path / CONFIG)
