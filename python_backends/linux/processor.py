"""What kind of processor this is, as Linux describes it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def processor_flags() -> frozenset[str]:
    """The instruction sets of the first processor; empty where Linux does not list them."""
    return frozenset(_first("flags").split())


@cache
def processor_name() -> str:
    """Such as `AMD EPYC 9V45 96-Core Processor, family 26 model 2`: what decides how fast code runs."""
    return f"{_first('model name')}, family {_first('cpu family')} model {_first('model')}"


def _first(field: str) -> str:
    for line in CPUINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""
