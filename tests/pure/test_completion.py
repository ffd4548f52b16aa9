"""The words of `gapless` are completed by the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commands.__main__ import COMMANDS
from python_backends.settings import ROOT

BASH = """
eval "$(cat completion)"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_gapless
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    pytest.importorskip("shtab")
    said = {}
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-m", "commands", "completion", shell]
        said[shell] = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return said


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["gapless", ""], sorted(name for name in COMMANDS if " " not in name)),
        (["gapless", "bench", "st"], ["startup"]),
        (["gapless", "bench", "startup", "--ro"], ["--rounds"]),
        (["gapless", "bench", "--conc"], ["--concurrency"]),
        (["gapless", "com"], ["completion"]),
        (["gapless", "serve", "--max-"], ["--max-model-len", "--max-num-seqs"]),
        (["gapless", "serve", "my-"], ["my-model.gguf"]),
        (["gapless", "finetune", "c"], ["cancel"]),
        (["gapless", "finetune", "submit", "--al"], ["--alone", "--alpha"]),
        (["gapless", "top", "--ev"], ["--every"]),
        (["gapless", "completion", "f"], ["fish"]),
    ],
)
def test_bash_completes_commands_options_and_files(
    scripts: dict[str, str], tmp_path: Path, words: list[str], found: list[str]
) -> None:
    (tmp_path / "completion").write_text(scripts["bash"])
    (tmp_path / "my-model.gguf").touch()
    command = ["bash", "-c", BASH, *words[:1], *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_get_every_command(scripts: dict[str, str], tmp_path: Path, shell: str) -> None:
    words = {word for name in COMMANDS for word in name.split()}
    assert [word for word in words if word not in scripts[shell]] == []
    assert "max-model-len" in scripts[shell]
    if program := shutil.which(shell):
        (tmp_path / "completion").write_text(scripts[shell])
        subprocess.run([program, "-n", tmp_path / "completion"], env=os.environ, check=True)
