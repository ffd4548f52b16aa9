"""Options of `submit` that no job can have are refused before one is made."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from commands.finetune import __main__ as finetune
from commands.finetune.__main__ import _command, command_parser, main
from commands.finetune.beginning import place
from python_backends.engine.adapter_directory import CONFIG
from python_backends.finetuning import jobs
from python_backends.finetuning.jobs import Job
from tests.support.finetuning_jobs import new_job


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
        (["--name", "../x"], "--name '../x': must be 1 to 128 letters"),
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--targets", "q_proj,nothing"], "--targets nothing: must be among"),
        (["--from", "law"], "--from law: neither a directory with adapter_config.json nor an adapter in"),
        (["--from", "../law"], "--from ../law: it is no directory with adapter_config.json"),
        (["--resume", "ftjob-1"], "submit: give a JSONL file"),
        (["--alone"], "submit: --detach is for jobs of a server"),
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


def test_a_job_that_is_resumed_has_its_own_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--set", f"finetuning.directory={tmp_path}", "submit", "--alone", "--resume", "ftjob-1"]
    monkeypatch.setattr(sys, "argv", ["finetuning", *words, "--from", "law", "--rank", "4", "--json"])
    assert main() == 1
    assert capsys.readouterr().err == "submit: --rank, --from: a job that is resumed has its own\n"
    monkeypatch.setattr(sys, "argv", ["finetuning", *words])
    assert main() == 1
    assert "no such job" in capsys.readouterr().err


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A queued one, in the place of that which `submit` makes and others name."""
    made = new_job(tmp_path, steps=2)
    monkeypatch.setattr(finetune, "new_job", lambda *_: made)
    monkeypatch.setattr(jobs, "jobs_directory", lambda _: tmp_path)
    monkeypatch.setattr(finetune, "plot", lambda _: None)
    return made


def test_who_no_longer_watches_a_job_hears_that_it_goes_on(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Job) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(finetune, "watch", interrupted)
    monkeypatch.setattr(sys, "argv", ["finetuning", "submit", "train.jsonl"])
    with pytest.raises(SystemExit, match="130"):
        main()
    assert f"{job.id} goes on in the server" in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [False, True])
def test_a_job_that_was_cancelled_elsewhere_has_not_succeeded(
    as_json: bool, job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--json"] if as_json else []
    monkeypatch.setattr(sys, "argv", ["finetuning", "cancel", job.id, *words])
    assert main() == 0
    said = capsys.readouterr().out
    assert json.loads(said)["status"] == "cancelled" if as_json else said.startswith(f"{job.id}: cancelled;")
    monkeypatch.setattr(sys, "argv", ["finetuning", "submit", "train.jsonl"])
    assert main() == 1
    assert capsys.readouterr().err.endswith(f"{job.id} was cancelled\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_job_that_is_deleted_says_what_stays(
    as_json: bool, job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["finetuning", "delete", job.id, *(["--json"] if as_json else [])]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 1
    assert "it has not ended (queued)" in capsys.readouterr().err
    job.end("succeeded", "succeeded", gapless={**job.options, "adapter": "law@3"})
    assert main() == 0
    said = capsys.readouterr().out
    if as_json:
        assert json.loads(said) == {"id": job.id, "object": "fine_tuning.job", "deleted": True}
    else:
        assert said.splitlines()[-1] == "what was published of it stays in adapters.directory: law@3"
    assert not job.directory.exists()


def test_an_export_in_json_names_directory_and_step(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(finetune, "export", lambda *_: 40)
    monkeypatch.setattr(sys, "argv", ["finetuning", "export", job.id, "there", "--json"])
    assert main() == 0
    assert json.loads(capsys.readouterr().out) == {"directory": "there", "step": 40}


def test_an_adapter_that_is_not_served_says_the_jobs_own_reason(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job.end("succeeded", "succeeded")
    monkeypatch.setattr(finetune, "watch", lambda _: job)
    monkeypatch.setattr(sys, "argv", ["finetuning", "submit", "train.jsonl"])
    reasons = ["it is not served: a server with adapters.directory serves it; `export` puts it there"]
    for _ in range(2):
        assert main() == 0
        assert capsys.readouterr().out.splitlines()[-1] == reasons[-1]
        reasons.append("the adapter is not served: the loss of the held-out examples has not fallen")
        job.say(reasons[-1], "warn")


def test_the_command_that_is_told_next_has_the_settings_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--settings", "mine.toml", "--set", "engine.slots=4", "submit", "train.jsonl"]
    said = _command(command_parser().parse_args(given), "cancel", "ftjob-1")
    assert said.endswith(f"finetune --settings {tmp_path}/mine.toml --set engine.slots=4 cancel ftjob-1")
