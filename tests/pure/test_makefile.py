"""What `make` gives the programs: values as they were given, whatever letters are in them."""

from __future__ import annotations

import os
import subprocess

import pytest

from python_backends.settings import ROOT
from tests.conftest import SLOW, TESTS

ODD = """/a b/c"d'e;$HOME`id`#(é)\\"""


def words_of(target: str, **variables: str) -> list[str]:
    """The words after the name of the command, with a program in place of Python that prints them."""
    # as in a shell: a make that runs this test would add lines
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    given = [f"{name}={value}" for name, value in variables.items()]
    done = subprocess.run(
        ["make", "-s", target, "PY=printf %s\\\\n", *given],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    assert words[:2] == ["-m", "commands"]
    return words[3:]


@pytest.mark.parametrize("model", ["models/x", "/my model", ODD])
def test_the_model_is_a_path_of_any_letters(model: str) -> None:
    assert words_of("serve", MODEL=model) == ["--set", f"model.directory={model}"]


def test_settings_may_be_in_quotes() -> None:
    settings = 'engine.slots=4 "model.directory=/my model"'
    assert words_of("serve", SET=settings, SLOTS="5") == ["--set", "engine.slots=5", "--sets", settings]
    assert words_of("serve") == []


def test_a_cluster_has_two_instances_and_the_settings_that_it_is_given() -> None:
    given = words_of("cluster", SET='"model.directory=/$my model"')
    assert given == ["--sets", 'cluster.instances=2 "model.directory=/$my model"']


def test_training_data_may_lie_anywhere() -> None:
    words = words_of("finetune", DATA=ODD, NAME="no comments", ARGS="--rank 4")
    assert words == ["submit", ODD, "--name", "no comments", "--rank", "4"]


def test_names_and_data_of_the_environment_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """WSL sets NAME to that of the machine."""
    monkeypatch.setenv("NAME", "DESKTOP-1")
    monkeypatch.setenv("DATA", "/data")
    assert words_of("finetune", ARGS="--rank 4") == ["submit", "--rank", "4"]


def test_the_slow_tests_that_are_left_out_of_make_test_are_there() -> None:
    assert [name for name in SLOW if not (TESTS / name).exists()] == []
