"""How much processor time and memory the control group of this process may use: `docker run --cpus --memory`,
limits of a Kubernetes pod. The launcher writes it into the log; layers have no more threads than that.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
NO_LIMIT_BYTES = 1 << 60  # version 1 writes a number near 2**63 for no limit


def as_text(groups: Path = GROUPS, own: Path = OWN) -> str:
    """Returns what is less than this process sees of the host; empty if nothing is."""
    visible = len(os.sched_getaffinity(0))
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    parts = []
    if (processors := processor_quota(groups, own)) is not None and processors < visible:
        parts.append(
            f"a quota of {processors:g} processors, where {visible} are visible (see engine.threads)"
        )
    if (limit := memory_limit(groups, own)) is not None and limit < host_bytes:
        parts.append(f"{limit / 2**30:.1f} GiB of memory, of {host_bytes / 2**30:.1f} GiB on the host")
    return f"the control group allows {' and '.join(parts)}" if parts else ""


def usable_processors() -> int:
    """How many processors this process may use at the same time."""
    visible = len(os.sched_getaffinity(0))
    quota = processor_quota()
    return visible if quota is None else min(visible, max(1, math.ceil(quota)))


def processor_quota(groups: Path = GROUPS, own: Path = OWN) -> float | None:
    """Returns processors; None: no quota. Those of the groups above count, too."""
    found = []
    for directory in _directories(groups, own, "cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if (new := directory / "cpu.max").exists():
                quota, period = (int(word) for word in new.read_text().split())  # "max": ValueError
            else:
                quota = int((directory / "cpu.cfs_quota_us").read_text())
                period = int((directory / "cpu.cfs_period_us").read_text())
            if quota > 0:
                found.append(quota / period)
    return min(found, default=None)


def memory_limit(groups: Path = GROUPS, own: Path = OWN) -> int | None:
    """Returns bytes; None: no limit. Those of the groups above count, too."""
    found = []
    for directory in _directories(groups, own, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                found.append(int((directory / name).read_text()))
    limit = min(found, default=NO_LIMIT_BYTES)
    return limit if limit < NO_LIMIT_BYTES else None


def _directories(groups: Path, own: Path, controller: str) -> Iterator[Path]:
    """Those of the groups of this process for a controller, with all above them. In a container a path may
    be the host's: then the container's own group is at the top.
    """
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = groups / controller if controllers else groups
            place = top / path.lstrip("/")
            yield from (each for each in (place, *place.parents) if each.is_relative_to(top))
