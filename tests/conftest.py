"""Marks tests by what they need and by their circle: `make test` leaves out those that are `slow`. Where two
processes test side by side (`pytest -n 2`), one has the tests of the server and the other the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parent
NEEDS = {"server": ("server", "dashboard"), "docker": ("docker",)}  # marker: folders
STARTS_SERVERS = ("server", "dashboard", "docker")
SLOW = (  # they take a minute or more, and few changes can break them
    "benchmarks/test_gpu_floor.py",
    "benchmarks/test_gpu_script.py",
    "benchmarks/test_scripts.py",
    "cpu/test_compile_kernels.py",
    "cpu/test_kernels.py",
    "cpu/test_published.py",
    "dashboard",
    "docker",
    "server/test_examples.py",
    "server/test_fuzz.py",
    "server/test_ray.py",
)
SAID: list[str] = []  # what tests want to be read at the end


def folder_of(path: Path) -> str:
    return path.relative_to(TESTS).parts[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # what takes longest first, so that both processes end at about the same time
    items.sort(key=lambda item: (folder_of(item.path) not in STARTS_SERVERS, folder_of(item.path) != "cpu"))
    for item in items:
        path = item.path.relative_to(TESTS)
        for marker, folders in NEEDS.items():
            if folder_of(item.path) in folders:
                item.add_marker(marker)
        if folder_of(item.path) in SLOW or str(path) in SLOW:
            item.add_marker("slow")


class OneServerAtATime(LoadFileScheduling):
    """The tests of a file run in one process, and all that start servers in one: they measure waits,
    and share servers.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "servers" if Path(file).parts[1] in STARTS_SERVERS else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneServerAtATime:
    return OneServerAtATime(config, log)


def say(config: pytest.Config, lines: list[str]) -> None:
    """At the end of the run. What a process beside others wants to say travels to the one that reports."""
    said: list[str] = getattr(config, "workeroutput", {}).setdefault("said", SAID)
    said.extend(lines)


def pytest_testnodedown(node: Any) -> None:
    SAID.extend(getattr(node, "workeroutput", {}).get("said", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in SAID:
        terminalreporter.write_line(line)
