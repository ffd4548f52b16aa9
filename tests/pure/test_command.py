"""The command `gapless`: its words, and what `serve` makes of the names that users of other servers know."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commands import __main__ as command
from commands import env, serve
from python_backends.settings import ROOT, Settings, SettingsError, of_command_line
from python_backends.settings.sections.server import ServerSettings


def settings_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> Settings:
    monkeypatch.setattr(sys, "argv", ["gapless serve", *words])
    return of_command_line(serve.arguments())


def test_an_image_tells_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert command.release().count(".") == 2
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.delenv("GAPLESS_COMMIT", raising=False)
    assert command.release() == "of an image"
    monkeypatch.setenv("GAPLESS_COMMIT", "1a2b3c4")
    assert command.release() == "of an image 1a2b3c4"
    for name in ("Dockerfile", "tensorrt-llm.Dockerfile"):
        assert "\nENV GAPLESS_COMMIT=$COMMIT\n" in (ROOT / "build/image" / name).read_text()


def test_each_command_can_be_called() -> None:
    """In one process: each module has its `main`."""
    code = (
        "import importlib; from commands.__main__ import COMMANDS;"
        "assert all(callable(importlib.import_module(name).main) for name, _, _ in COMMANDS.values())"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("words", [[], ["--help"], ["serve", "--help"], ["top", "--help"], ["env", "--help"]])
def test_help_names_the_command_as_it_is_called(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gapless", *words])
    with pytest.raises(SystemExit, match="0"):
        command.main()
    assert capsys.readouterr().out.startswith(f"usage: {' '.join(['gapless', *words[:-1]])} ")


def test_a_package_that_is_missing_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(command.COMMANDS, "serve", ("no_such_package.serve", (), ""))
    monkeypatch.setattr(sys, "argv", ["gapless", "serve"])
    assert command.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gapless serve: the Python package no_such_package is not installed")


@pytest.mark.parametrize("fits", [True, False])
def test_a_command_ends_quietly_when_who_reads_it_has_left(fits: bool, tmp_path: Path) -> None:
    """As in `gapless top | head -2`; also where the last lines wait in a buffer."""
    (tmp_path / "printing.py").write_text(
        f"def main():\n    print('x' * {10 if fits else 1 << 20})\n    return 0\n"
    )
    code = (
        "import sys; from commands import __main__ as command\n"
        "command.COMMANDS['env'] = ('printing', (), '')\n"
        "sys.argv = ['gapless', 'env']; sys.exit(command.main())"
    )
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_short_names_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ("--host", "0.0.0.0", "--port", "1", "--max-num-seqs", "3")
    settings = settings_of(monkeypatch, *server, "--max-model-len", "99", "--dtype", "float32")
    assert settings_of(monkeypatch, "--served-model-name", "a,b").front.model_names == "a,b"
    server, engine, model = settings.server, settings.engine, settings.model
    assert (server.address, settings.front.port, engine.slots) == ("0.0.0.0", 1, 3)
    assert (model.max_model_tokens, model.dtype, model.directory) == (99, "float32", "auto")


def test_the_model_is_a_path_from_where_the_command_is_given_or_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "bundled").mkdir()
    monkeypatch.chdir(tmp_path)
    given = {word: settings_of(monkeypatch, word).model.directory for word in ("mine", "bundled", "org/name")}
    assert given == {"mine": str(tmp_path / "mine"), "bundled": "bundled", "org/name": "org/name"}


def test_a_key_is_what_the_front_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAPLESS_API_KEY", "before")
    settings_of(monkeypatch, "--api-key", "sk-mine")
    assert os.environ["GAPLESS_API_KEY"] == "sk-mine"


@pytest.mark.parametrize("key", ["", " "])
def test_a_key_that_is_blank_is_refused(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a variable of the shell that is not set."""
    with pytest.raises(SystemExit):
        settings_of(monkeypatch, "--api-key", key)
    assert "--api-key: must not be blank" in capsys.readouterr().err


def test_a_short_name_is_refused_by_the_name_of_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"^engine\.slots = 'many': must be of type int$"):
        settings_of(monkeypatch, "--slots", "many")


def test_env_tells_what_differs_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = "http://me:hidden@host:4318/v1?token=hidden"
    settings = Settings(server=ServerSettings(trace_url=trace, http_port=7))
    (port, url) = env.changed(settings)
    assert port == "server.http_port = 7"
    assert url.startswith("server.trace_url = http://")
    assert "hidden" not in url
    assert "host:4318/v1" in url


def test_env_says_that_there_is_a_key_and_not_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAPLESS_API_KEY", "sk-hidden")
    monkeypatch.setattr(sys, "argv", ["gapless env", "--set", "engine.slots=3"])
    assert env.main() == 0
    said = capsys.readouterr().out
    assert "GAPLESS_API_KEY is set" in said
    assert "engine.slots = 3" in said
    assert "sk-hidden" not in said
