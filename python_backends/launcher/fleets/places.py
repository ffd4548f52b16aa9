"""Assigns processors and GPUs to each instance.

Several instances on the same processors would wait for each other's threads, so the processors are divided
among them. GPUs are assigned in rotation. Called by the fleets.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Place:
    processors: frozenset[int] | None = None  # None: where the launcher runs
    environment: Mapping[str, str] = field(default_factory=dict)


def places(count: int, processors: frozenset[int] | None, gpus: list[str], num_gpus: int = 1) -> list[Place]:
    """Returns the places of `count` instances, which share `processors` (None: those of the launcher) and
    `gpus`, `num_gpus` for each. A single instance has all of them.
    """
    if count == 1:
        return [Place(processors)]
    shared = sorted(os.sched_getaffinity(0) if processors is None else processors)
    parts = [frozenset(shared[number::count] or [shared[number % len(shared)]]) for number in range(count)]
    if not gpus:
        return [Place(part) for part in parts]
    turns = itertools.cycle(gpus)
    return [Place(part, {VISIBLE: ",".join(itertools.islice(turns, num_gpus))}) for part in parts]


def visible_gpus(environment: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """Returns the GPUs that may be used, by their names in CUDA_VISIBLE_DEVICES: CUDA counts those that it
    sees, whatever their numbers on the host of a container are.
    """
    if VISIBLE in environment:
        return [name for name in environment[VISIBLE].split(",") if name]
    return [str(number) for number in range(len(list(devices.glob("nvidia[0-9]*"))))]
