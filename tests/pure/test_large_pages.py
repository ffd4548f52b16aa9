"""The process of an engine asks for large pages, and gives them up where they are slower; what a user has set
stays.
"""

from __future__ import annotations

import logging
import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from python_backends.linux import large_pages
from python_backends.linux.large_pages import TUNABLES, keep_large_pages_if_faster, with_large_pages

ROOT = Path(__file__).resolve().parents[2]
POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LARGE_ARRAY = """
import sys
from pathlib import Path
import numpy as np
from python_backends.linux.large_pages import give_up_large_pages
if sys.argv[1] == "off":
    give_up_large_pages()
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


has_large_pages = pytest.mark.skipif(
    not POLICY.exists() or "[never]" in POLICY.read_text(), reason="this system has no transparent huge pages"
)


@has_large_pages
@pytest.mark.parametrize("pages", ["on", "off"])
def test_a_large_array_lies_in_large_pages_until_they_are_given_up(pages: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE_ARRAY, pages],
        env=with_large_pages({}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (int(done.stdout) > 64 << 10) == (pages == "on"), "KiB, of 128 MiB"


@pytest.mark.parametrize(
    ("small_s", "large_s", "chosen"),
    [(0.032, 0.031, "asked for"), (0.032, 0.0325, "asked for"), (0.032, 0.033, "given up")],
    ids=["faster", "about the same", "slower"],
)
def test_they_are_given_up_where_the_same_memory_is_read_more_slowly(
    small_s: float,
    large_s: float,
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given_up: list[bool] = []
    monkeypatch.setattr(large_pages, "_read_times", lambda: (small_s, large_s))
    monkeypatch.setattr(large_pages, "give_up_large_pages", lambda: given_up.append(True))
    monkeypatch.setenv(TUNABLES, "glibc.malloc.hugetlb=1")
    with caplog.at_level(logging.INFO, "gapless.instance"):
        keep_large_pages_if_faster.__wrapped__()
    assert bool(given_up) == (chosen == "given up")
    assert f"large pages are {chosen}: the same memory was read in {1000 * large_s:.1f} ms" in caplog.text


def test_a_process_that_was_not_started_with_them_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_read_times", lambda: pytest.fail("tried"))
    monkeypatch.setenv(TUNABLES, "glibc.malloc.hugetlb=0")
    keep_large_pages_if_faster.__wrapped__()


@has_large_pages
def test_the_trial_reads_memory_of_both_kinds() -> None:
    before = large_kib()
    small = large_pages._memory(mmap.MADV_NOHUGEPAGE)
    without = large_kib()
    large = large_pages._memory(mmap.MADV_HUGEPAGE)
    assert small.nbytes == large.nbytes == large_pages.NUM_BYTES
    assert without - before < 16 << 10 < large_kib() - without


def large_kib() -> int:
    """KiB of this process in large pages."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
