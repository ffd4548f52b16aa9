"""The limit of open files, and those of another process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from python_backends.linux import open_files

PROGRAM = """
import resource
from python_backends.linux.open_files import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_limit({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "limit"), [(128, 256, 200, 200), (128, 256, 9999, 256), (200, 256, 128, 200)]
)
def test_the_soft_limit_is_raised_as_far_as_the_hard_one_allows_and_never_lowered(
    soft: int, hard: int, wanted: int, limit: int
) -> None:
    program = PROGRAM.format(soft=soft, hard=hard, wanted=wanted)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{limit} ({limit}, {hard})"


def test_no_hard_limit_is_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited, given = resource.RLIM_INFINITY, []
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _: (1024, unlimited))
    monkeypatch.setattr(open_files.resource, "setrlimit", lambda _, limits: given.append(limits))
    assert open_files.raise_limit(5000) == 5000
    assert given == [(5000, unlimited)]


def test_open_files_of_a_process_are_counted() -> None:
    before = open_files.count(os.getpid())
    reader, writer = os.pipe()
    try:
        assert open_files.count(os.getpid()) == before + 2
    finally:
        os.close(reader)
        os.close(writer)
