"""Memory that is given back to Linux before it is freed."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from python_backends.linux.freed_memory import give_back_pages


@pytest.mark.parametrize(("first", "last"), [(1, 0), (0, 1), (0, 0), (100, 100)])
def test_whole_pages_are_given_back_and_nothing_beside_them(first: int, last: int) -> None:
    page = mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, 8 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    memory[:] = 1
    part = memory[page + first : 4 * page - last]
    give_back_pages(part.ctypes.data, len(part))
    zeros = np.flatnonzero(memory == 0)
    begin, end = page + bool(first) * page, 4 * page - bool(last) * page
    assert zeros.tolist() == list(range(begin, end))


@pytest.mark.parametrize("length", [0, 1, 4000])
def test_of_less_than_a_page_nothing_is_given_back(length: int) -> None:
    memory = np.frombuffer(mmap.mmap(-1, 2 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    memory[:] = 1
    give_back_pages(memory[10:].ctypes.data, length)
    assert memory.all()
