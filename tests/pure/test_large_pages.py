"""The process of an engine asks for large pages; what a user has set stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from python_backends.linux.large_pages import with_large_pages

ROOT = Path(__file__).resolve().parents[2]
POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LARGE_ARRAY = """
from pathlib import Path
import numpy as np
array = np.ones(16 << 20)
lines = Path("/proc/self/smaps").read_text().splitlines()
print(sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages")))
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}, "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, "glibc.malloc.hugetlb=0"),
    ],
)
def test_what_is_tuned_already_stays(given: dict[str, str], expected: str) -> None:
    assert with_large_pages({"PATH": "/bin", **given}) == {"PATH": "/bin", "GLIBC_TUNABLES": expected}


@pytest.mark.skipif(
    not POLICY.exists() or "[never]" in POLICY.read_text(), reason="this system has no transparent huge pages"
)
def test_a_large_array_lies_in_large_pages() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE_ARRAY],
        env=with_large_pages({}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) > 64 << 10, "KiB, of 128 MiB"
