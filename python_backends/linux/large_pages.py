"""Large pages for the memory that an engine on a CPU reads at every step.

Each step reads all weights and used KV blocks, and the processor looks up each of their 4 KiB pages in the
page tables. glibc asks Linux for pages of 2 MiB if a variable is set when a process starts (glibc 2.35; no
effect if /sys/kernel/mm/transparent_hugepage/enabled is `never`). The launcher sets it where an engine's
process is started (docs/notebook/cpu_steps.md).
"""

from __future__ import annotations

from collections.abc import Mapping

TUNABLES = "GLIBC_TUNABLES"
LARGE = "glibc.malloc.hugetlb"


def with_large_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns `environment` with the setting for large pages, unless it has one already."""
    tunables = environment.get(TUNABLES, "")
    if LARGE in tunables:
        return dict(environment)
    return {**environment, TUNABLES: ":".join(filter(None, [tunables, f"{LARGE}=1"]))}
