"""The commands of `launcher.control`, as they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backends.launcher.control import arguments


@pytest.mark.parametrize(
    "given",
    [
        ["--run-directory", "/run/one", "top", "--every", "2"],
        ["top", "--every", "2", "--run-directory", "/run/one"],  # as `make top ARGS=…` gives it
    ],
)
def test_the_run_directory_may_stand_before_the_command_and_after_it(given: list[str]) -> None:
    asked = arguments(given)
    assert (asked.command, asked.every, asked.run_directory) == ("top", 2.0, Path("/run/one"))
    assert arguments(["top"]).run_directory is None
