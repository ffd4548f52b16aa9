"""Reads the kind of processor from Linux."""

from __future__ import annotations

from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def processor_flags() -> frozenset[str]:
    """Returns the instruction sets of the first processor; empty where Linux does not list them."""
    return frozenset(_first("flags").split())


@cache
def processor_name() -> str:
    """Returns a name such as `AMD EPYC 9V45 96-Core Processor, family 26 model 2`."""
    return f"{_first('model name')}, family {_first('cpu family')} model {_first('model')}"


def _first(field: str) -> str:
    for line in CPUINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""
