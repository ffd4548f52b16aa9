"""Gives memory back to Linux as soon as it is not needed: what a load needs for a while would else count as
memory of this process. Called where weights are read and packed, and where training has ended.
"""

from __future__ import annotations

import ctypes
import mmap

_libc = ctypes.CDLL(None)
_trim = getattr(_libc, "malloc_trim", None)  # glibc's


def give_back_freed_memory() -> None:
    """What was freed may lie between what stays."""
    if _trim is not None:
        _trim(0)


def give_back_pages(address: int, num_bytes: int) -> None:
    """All whole pages of a piece of memory that is not freed yet. They read as zeros afterwards, those of a
    mapped file as the file.
    """
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if length > 0:
        _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_DONTNEED)
