"""Reads the kind of processor from Linux."""

from __future__ import annotations

from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def processor_flags() -> frozenset[str]:
    """Returns the instruction sets of the first processor; empty where Linux does not list them."""
    for line in CPUINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()
