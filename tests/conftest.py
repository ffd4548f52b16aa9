"""Marks tests by what they need, for `-m "not server"` and `-m "not docker and not slow"`."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NEEDS = {"server": ("server", "dashboard"), "docker": ("docker",)}  # marker: folders
SLOW = ("cpu/test_benchmark_scripts.py", "server/test_fuzz.py")  # a minute or more, and all of docker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(TESTS)
        folder = path.parts[0]
        for marker, folders in NEEDS.items():
            if folder in folders:
                item.add_marker(marker)
        if folder == "docker" or str(path) in SLOW:
            item.add_marker("slow")
