"""Gives memory that was freed back to Linux at once: what a load needs for a while would else lie between
what stays, and count as memory of this process. Called where weights are read, and where training has ended.
"""

from __future__ import annotations

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's


def give_back_freed_memory() -> None:
    if _trim is not None:
        _trim(0)
