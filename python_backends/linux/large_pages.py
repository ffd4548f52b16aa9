"""Large pages for the memory that an engine on a CPU reads at every step.

Each step reads all weights and used KV blocks, and the processor looks up each of their 4 KiB pages in the
page tables. glibc asks Linux for pages of 2 MiB if a variable is set when a process starts (glibc 2.35; no
effect if /sys/kernel/mm/transparent_hugepage/enabled is `never`). The launcher sets it where an engine's
process is started; the process gives large pages up again where they are slower (docs/notebook/cpu_steps.md).
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import time
from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger("gapless.instance")

TUNABLES = "GLIBC_TUNABLES"
LARGE = "glibc.malloc.hugetlb"
NUM_BYTES = 32 << 20  # of each kind of pages: together more than a processor's last cache holds
ROW = 2048  # numbers that are read in one piece, each time elsewhere, as weights and KV blocks are
PASSES = 7
LEAST_LOSS = 0.02  # large pages must be slower by this to be given up
_SET_THP_DISABLE = 41  # of prctl(2), for which Python has no function


def with_large_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns `environment` with the setting for large pages, unless it has one already."""
    tunables = environment.get(TUNABLES, "")
    if LARGE in tunables:
        return dict(environment)
    return {**environment, TUNABLES: ":".join(filter(None, [tunables, f"{LARGE}=1"]))}


@cache
def keep_large_pages_if_faster() -> None:
    """Memory that this process takes from now on has no large pages if they make reading slower here. Tried
    once in a process, in 0.2 s, if the process was started with large pages.
    """
    if f"{LARGE}=1" not in os.environ.get(TUNABLES, ""):
        return
    try:
        small, large = _read_times()
    except OSError as error:
        log.info("this system has no large pages: %s", error)
        return
    are_slower = large > (1 + LEAST_LOSS) * small
    if are_slower:
        give_up_large_pages()
    log.info(
        "large pages are %s: the same memory was read in %.1f ms with them and in %.1f ms without",
        "given up" if are_slower else "asked for",
        1000 * large,
        1000 * small,
    )


def give_up_large_pages() -> None:
    """Memory that this process has already keeps its pages."""
    ctypes.CDLL(None).prctl(_SET_THP_DISABLE, 1, 0, 0, 0)


def _read_times() -> tuple[float, float]:
    """Seconds to read the same amount of memory with small and with large pages: the medians of passes in
    turn. Raises OSError if Linux was built without large pages.
    """
    memories = [_memory(advice) for advice in (mmap.MADV_NOHUGEPAGE, mmap.MADV_HUGEPAGE)]
    order = np.random.default_rng(0).permutation(len(memories[0]))
    times = np.array([[_read_time(memory, order) for memory in memories] for _ in range(PASSES)])
    small, large = np.median(times, axis=0)
    return float(small), float(large)


def _memory(advice: int) -> NDArray[np.float32]:
    """[rows, ROW], all of it touched."""
    mapped = mmap.mmap(-1, NUM_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(advice)
    memory = np.frombuffer(mapped, np.float32).reshape(-1, ROW)
    memory[:] = 1
    return memory


def _read_time(memory: NDArray[np.float32], order: NDArray[np.int64]) -> float:
    """Reads each row once, in this order."""
    began_s = time.perf_counter()
    for row in order:
        memory[row].sum()
    return time.perf_counter() - began_s
