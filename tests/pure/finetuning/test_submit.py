"""Options of `submit` that no job can have are refused before one is made."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from commands.finetune.__main__ import _command, command_parser, main
from commands.finetune.beginning import place
from python_backends.engine.adapter_directory import CONFIG


def test_a_disk_that_fails_has_an_exit_status_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text('{"text": "one two three"}\n')
    words = ["finetuning", "--set", f"finetuning.directory={data}", "submit", "--detach"]
    monkeypatch.setattr(sys, "argv", [*words, str(data)])
    assert main() == os.EX_IOERR
    monkeypatch.setattr(sys, "argv", [*words, str(tmp_path / "missing.jsonl")])
    assert main() == 1


def test_an_adapter_to_go_on_from_has_a_number_behind_its_sign(tmp_path: Path) -> None:
    for number in ("1", "2"):
        (tmp_path / "law" / number).mkdir(parents=True)
        (tmp_path / "law" / number / CONFIG).write_text("{}")
    assert place("law", tmp_path).name == "2"
    assert place("law@1", tmp_path).name == "1"
    with pytest.raises(ValueError, match="--from law@: neither a directory"):
        place("law@", tmp_path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--rank", "0"], "--rank 0: must be between 1 and 256"),
        (["--rank", "257"], "--rank 257: must be between 1 and 256"),
        (["--alpha", "nan"], "--alpha nan: must be between 0.001 and 10000"),
        (["--epochs", "0"], "--epochs 0: must be between 1 and 10000"),
        (["--batch-size", "5000"], "--batch-size 5000: must be between 1 and 4096"),
        (["--seed", "-1"], "--seed -1: must be between 0 and"),
        (["--seed", str(2**63)], f"--seed {2**63}: must be between 0 and"),
        (["--learning-rate", "2"], "--learning-rate 2: must be above 0 and at most 1"),
        (["--name", "../x"], "--name '../x': at most 128 letters"),
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--targets", "q_proj,nothing"], "--targets nothing: must be among"),
        (["--from", "law"], "--from law: neither a directory with adapter_config.json nor an adapter in"),
        (["--from", "../law"], "--from ../law: it is no directory with adapter_config.json"),
        (["--resume", "ftjob-1"], "submit: give a JSONL file"),
    ],
)
def test_an_option_that_no_job_can_have_is_named_with_its_limit(
    options: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text('{"text": "one two three"}\n')
    settings = {
        "finetuning.directory": tmp_path / "jobs",
        "adapters.directory": tmp_path / "adapters",
    }
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    monkeypatch.setattr(sys, "argv", ["finetuning", *sets, "submit", str(data), "--detach", *options])
    assert main() == 1
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.glob("jobs/**/ftjob-*"))


def test_the_command_that_is_told_next_has_the_settings_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--settings", "mine.toml", "--set", "engine.slots=4", "submit", "train.jsonl"]
    said = _command(command_parser().parse_args(given), "cancel", "ftjob-1")
    assert said.endswith(f"finetune --settings {tmp_path}/mine.toml --set engine.slots=4 cancel ftjob-1")
