"""Marks tests by what they need and by their circle: `make test` leaves out those that are `slow`. Where
several processes test side by side (`pytest -n 2`), each takes one file after another.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

TESTS = Path(__file__).parent
NEEDS = {"server": ("server", "dashboard"), "docker": ("docker",)}  # marker: folders
WAIT = ("server", "dashboard", "docker")  # folders of tests that wait more than they compute
ONE_IMAGE = "docker"  # this folder's tests share an image and its containers: one process has all of them
SLOW = (  # they take long, and few changes can break them
    "benchmarks",
    "cpu/test_compile_kernels.py",
    "cpu/test_kernels.py",
    "cpu/test_load_memory.py",
    "cpu/test_published.py",
    "dashboard",
    "docker",
    "recipe",
    "server/test_examples.py",
    "server/test_front_hostile.py",
    "server/test_fuzz.py",
    "server/test_hub.py",
    "server/test_page.py",
    "server/test_paths.py",
    "server/test_pauses.py",
    "server/test_processors.py",
    "server/test_ray.py",
    "server/test_shortages.py",
    "server/test_startup.py",
    "server/test_tensorrt_llm.py",
    "server/test_tracing.py",
    "server/test_wheel.py",
)
LONGEST = "benchmarks/test_scripts.py"  # begun last, it would be alone at the end
SAID: list[str] = []  # what tests want to be read at the end


def folder_of(path: Path) -> str:
    return path.relative_to(TESTS).parts[0]


def is_slow(path: Path) -> bool:
    return folder_of(path) in SLOW or str(path.relative_to(TESTS)) in SLOW


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a test of the circle that is asked for are not even imported."""
    if not collection_path.match("test_*.py"):
        return None
    slow = is_slow(collection_path)
    if config.option.markexpr == "slow":
        return None if slow or "mark.slow" in collection_path.read_text("utf-8") else True
    return True if slow and config.option.markexpr == "not slow" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = alternating(items)
    for item in items:
        for marker, folders in NEEDS.items():
            if folder_of(item.path) in folders:
                item.add_marker(marker)
        if is_slow(item.path):
            item.add_marker("slow")


def alternating(items: list[pytest.Item]) -> list[pytest.Item]:
    """File by file: one whose tests wait, one whose tests compute, so that the processors are busy and not
    more than that. What takes longest comes first, so that all processes end at about the same time.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    wait = sorted(
        (path for path in files if folder_of(path) in WAIT), key=lambda path: folder_of(path) == "server"
    )
    compute = sorted(
        files.keys() - set(wait),
        key=lambda path: (path != TESTS / LONGEST, folder_of(path) != "cpu", not is_slow(path), path),
    )
    order = [path for pair in zip_longest(wait, compute) for path in pair if path is not None]
    return [item for path in order for item in files[path]]


class ByFile(LoadFileScheduling):
    """A file's tests run in one process, and all of containers."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return ONE_IMAGE if Path(file).parts[1] == ONE_IMAGE else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


class NamesFailures:
    """Names each failed test at once: a run that is stopped early has said what failed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"{report.nodeid}: its {report.when} failed: {last_line(report)}")


def last_line(report: pytest.TestReport) -> str:
    """Where it failed, and which error it was."""
    return report.longreprtext.strip().rpartition("\n")[-1]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # this process reports
        config.pluginmanager.register(NamesFailures(config))


def say(config: pytest.Config, lines: list[str]) -> None:
    """At the end of the run. What a process beside others wants to say travels to the one that reports."""
    said: list[str] = getattr(config, "workeroutput", {}).setdefault("said", SAID)
    said.extend(lines)


def pytest_testnodedown(node: Any) -> None:
    SAID.extend(getattr(node, "workeroutput", {}).get("said", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in SAID:
        terminalreporter.write_line(line)
