"""A submitter knows before it makes a job whether a server trains it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from commands.finetune import __main__ as finetune
from commands.finetune.__main__ import main
from python_backends.finetuning import jobs
from python_backends.finetuning.jobs import jobs_directory
from python_backends.finetuning.watchers import announced, refusals, trains
from python_backends.settings import ROOT, ServerSettings, load

REFUSAL = "engine.kind = 'tensorrt_llm': trains nothing"
DIES = """
import os, sys
from pathlib import Path
from python_backends.finetuning.watchers import announced
with announced(Path(sys.argv[1]), ""):
    os._exit(0)
"""


def test_a_watcher_is_seen_while_it_lives(tmp_path: Path) -> None:
    assert refusals(tmp_path) == []
    with announced(tmp_path, REFUSAL):
        assert refusals(tmp_path) == [REFUSAL]
        assert not trains(tmp_path)
        with announced(tmp_path, ""):
            assert trains(tmp_path)
        assert not trains(tmp_path)
    assert refusals(tmp_path) == []


def test_the_file_of_a_dead_process_does_not_count_and_the_next_one_removes_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DIES, tmp_path], cwd=ROOT, check=True, timeout=60)
    assert len(list((tmp_path / "watchers").iterdir())) == 1
    assert refusals(tmp_path) == []
    with announced(tmp_path, REFUSAL):
        assert len(list((tmp_path / "watchers").iterdir())) == 1
        assert refusals(tmp_path) == [REFUSAL]


def test_settings_of_the_environment_count_as_they_do_for_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else jobs would lie where that server does not look for them."""
    monkeypatch.setenv("GAPLESS_FINETUNING__DIRECTORY", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["finetuning", "list"])
    assert main() == 0
    assert capsys.readouterr().err.startswith(f"no job in {tmp_path}/")


def test_who_has_trained_an_adapter_reads_how_to_chat_with_it_on_the_servers_own_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings that `submit` has say another port."""
    job = SimpleNamespace(id="ftjob-1", status="succeeded", directory=tmp_path, options={"adapter": "law"})
    monkeypatch.setattr(finetune, "new_job", lambda *_: job)
    monkeypatch.setattr(finetune, "_watched", lambda *_: job)
    monkeypatch.setattr(jobs, "jobs_directory", lambda _: tmp_path)
    monkeypatch.setattr(sys, "argv", ["finetuning", "submit", "train.jsonl"])
    for server, words in (
        (ServerSettings(), ""),
        (ServerSettings("0.0.0.0", grpc_port=8021), "--url 127.0.0.1:8021 "),
        (ServerSettings("::1"), "--url '[::1]:8001' "),
    ):
        with announced(tmp_path, REFUSAL, ServerSettings(grpc_port=1)), announced(tmp_path, "", server):
            assert main() == 0
        assert capsys.readouterr().out.endswith(f" chat {words}--lora-name law\n")


@pytest.mark.parametrize("servers", ["none trains", "one trains", "none"])
def test_submit_says_at_once_where_no_server_trains(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text('{"text": "one two three"}\n')
    given = {"finetuning.directory": str(tmp_path / "jobs"), "model.directory": "bundled"}
    directory = jobs_directory(load(ROOT / "gapless.toml", given))
    settings = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    words = [*settings, "submit", str(data), "--detach"]
    monkeypatch.setattr(sys, "argv", ["finetuning", *words])
    if servers == "none":
        assert main() == 0
        assert "no server looks for jobs in" in capsys.readouterr().err
    else:
        with announced(directory, REFUSAL if servers == "none trains" else ""):
            assert main() == int(servers == "none trains")
        said = f"no job was made. {REFUSAL}\n" if servers == "none trains" else ""
        assert capsys.readouterr().err == said
    assert len(list(directory.glob("ftjob-*"))) == int(servers != "none trains")
