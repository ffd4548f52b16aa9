"""What the control group of a process allows, of both versions of the kernel's interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backends.linux import quota
from python_backends.linux.quota import as_text, memory_limit, processor_quota

GIB = 1 << 30


def groups(place: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Files of control groups, and what a process reads of its own."""
    for name, text in files.items():
        (place / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "groups" / name).write_text(f"{text}\n")
    (place / "own").write_text(own)
    return place / "groups", place / "own"


@pytest.mark.parametrize(
    ("own", "files", "processors", "num_bytes"),
    [
        ("0::/\n", {"cpu.max": "150000 100000", "memory.max": str(GIB)}, 1.5, GIB),
        (
            "0::/a/b\n",
            {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000", "a/b/memory.max": "max"},
            0.5,
            None,
        ),
        ("0::/a\n", {"a/cpu.max": "max 100000", "a/memory.max": "max"}, None, None),
        (
            "4:cpu,cpuacct:/a\n3:memory:/a\n1:name=systemd:/x\n",
            {
                **{"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"},
                "memory/a/memory.limit_in_bytes": str(2 * GIB),
                "memory/memory.limit_in_bytes": "9223372036854771712",
            },
            2.0,
            2 * GIB,
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, None),
        # a container that sees the host's path, and its own group at the top
        (
            "4:cpu:/docker/1\n",
            {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"},
            1.0,
            None,
        ),
        ("0::/\n", {"cpu.max": "nonsense", "memory.max": ""}, None, None),
        ("", {}, None, None),
    ],
)
def test_quota_and_limit_of_a_group_and_those_above_it_are_read(
    tmp_path: Path, own: str, files: dict[str, str], processors: float | None, num_bytes: int | None
) -> None:
    where = groups(tmp_path, own, files)
    assert processor_quota(*where) == processors
    assert memory_limit(*where) == num_bytes


def test_what_is_less_than_the_host_has_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(quota.os, "sysconf", lambda _: 1 << 17)  # 16 GiB
    line = as_text(*groups(tmp_path, "0::/\n", {"cpu.max": "150000 100000", "memory.max": str(4 * GIB)}))
    assert "a quota of 1.5 processors, where 2 are visible" in line
    assert "4.0 GiB of memory, of 16.0 GiB" in line
    assert as_text(*groups(tmp_path, "0::/\n", {"cpu.max": "200000 100000", "memory.max": "max"})) == ""


def test_without_control_groups_nothing_is_said(tmp_path: Path) -> None:
    assert as_text(tmp_path / "none", tmp_path / "none") == ""
