"""The launcher's process before it has a server: what it is started without, signals that come early; and an
instance that promises nothing in the launcher's name, and imports no engine's libraries before it makes one.
"""

from __future__ import annotations

import errno
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commands import serve
from python_backends.launcher import run_directories, run_files
from python_backends.settings import ROOT

WITHOUT_FILES = """
import os, sys
from commands.serve import open_standard_files
open_standard_files()
print("lost", flush=True)
print("lost", file=sys.stderr, flush=True)
with open(sys.argv[1], "w") as opened:
    print([os.readlink(f"/proc/self/fd/{number}") for number in range(3)], opened.fileno(), file=opened)
"""
STARTING = """
import os, signal, sys
from commands import serve as launcher
def choose(_):
    assert os.listdir(sys.argv[1])
    os.kill(os.getpid(), int(sys.argv[2]))
    raise AssertionError("it goes on")
launcher.choose, sys.argv[1:] = choose, sys.argv[1:]
launcher.arguments, launcher.check_key = lambda: None, lambda *_: None
launcher.check_paths = lambda _: None
launcher.of_command_line = launcher.located = lambda _: None
sys.exit(launcher.main())
"""


def test_a_launcher_without_standard_files_gives_their_numbers_to_no_other_file(tmp_path: Path) -> None:
    said = tmp_path / "said"
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", WITHOUT_FILES, str(said)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    assert said.read_text() == f"{['/dev/null'] * 3} 3\n"


def test_a_signal_during_the_first_steps_ends_it_in_order(tmp_path: Path) -> None:
    environment = {**os.environ, "RUNTIME_DIRECTORY": str(tmp_path)}
    command = [sys.executable, "-c", STARTING, str(tmp_path), str(signal.SIGTERM.value)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert not list(tmp_path.iterdir()), "the run directory is removed"


def test_nohup_keeps_it_from_ending_with_its_terminal(tmp_path: Path) -> None:
    environment = {**os.environ, "RUNTIME_DIRECTORY": str(tmp_path)}
    command = ["nohup", sys.executable, "-c", STARTING, str(tmp_path), str(signal.SIGHUP.value)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False)
    assert b"AssertionError: it goes on" in done.stderr


@pytest.mark.parametrize("refuses", ["mkdtemp", "dump"])
def test_a_place_that_can_not_be_written_is_one_line(
    refuses: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(run_directories.tempfile if refuses == "mkdtemp" else run_files, refuses, refuse)
    monkeypatch.setattr(sys, "argv", ["gapless serve", "bundled"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for name in ("take_short_turns", "keep_off", "lacking", "open_standard_files"):
        monkeypatch.setattr(serve, name, lambda **_: None)
    monkeypatch.setattr("setproctitle.setproctitle", lambda _: None)
    assert serve.main() == 1
    said = f"the run directory can't be made in {tmp_path}: No space left on device; "
    assert caplog.messages[-1].startswith(said)


def test_an_instance_that_fails_does_not_say_what_the_launcher_will_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the first start the launcher ends, and later it says itself what it does."""
    monkeypatch.setattr(sys, "argv", ["without a run directory"])
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.delitem(sys.modules, "python_backends.instance.__main__", raising=False)
    with pytest.raises(SystemExit):
        runpy.run_module("python_backends.instance", run_name="__main__")
    assert caplog.messages == ["the instance ends because of this error"]


def test_an_instance_imports_torch_only_when_its_engine_needs_it() -> None:
    """Else an engine of others, which is started again after each fault, would wait for seconds."""
    code = "import sys, python_backends.instance.__main__; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "False\n"
