"""The wheel, unpacked where nothing of the checkout is, serves; its files are written where XDG says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from python_backends.linux.free_ports import free_ports
from python_backends.settings import ROOT
from tests.support.server.serving import BUSY
from tests.support.wheel import built

# nothing is compiled here: that is tested elsewhere, and takes longer than all else
SETTINGS = ("--set", "engine.cpp_layers=off", "--set", "prediction.enabled=false")
GAPLESS = (sys.executable, "-m", "gapless")


@dataclass(frozen=True)
class Installed:
    home: Path
    environment: dict[str, str]
    front_port: int
    grpc_port: int
    process: subprocess.Popen[str]
    invitation: str

    def ask(self, *words: str, text: str = "") -> str:
        """What another command says."""
        done = subprocess.run(
            [*GAPLESS, *words],
            cwd=self.home,
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=60 * BUSY,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Of this environment it has the dependencies, and `gapless` from the unpacked wheel."""
    home = tmp_path_factory.mktemp("home")
    zipfile.ZipFile(built(tmp_path_factory.mktemp("wheel"))).extractall(home / "site")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("GAPLESS_", "XDG_"))}
    # other servers of this user are not seen from here
    (home / "run").mkdir()
    own = {"HOME": str(home), "PYTHONPATH": str(home / "site"), "RUNTIME_DIRECTORY": str(home / "run")}
    environment = {**kept, **own}
    front, http, grpc, metrics = free_ports(4)
    ports = [f"server.http_port={http}", f"server.grpc_port={grpc}", f"server.metrics_port={metrics}"]
    command = [*GAPLESS, "serve", "bundled", "--port", str(front), *SETTINGS, "--sets", " ".join(ports)]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        lines = list(iter(process.stdout.readline, "Ctrl-C ends it.\n")) if process.poll() is None else []
        yield Installed(home, environment, front, grpc, process, "".join(lines))
        process.send_signal(signal.SIGINT)
        assert process.wait(60 * BUSY) == 0, (home / "log").read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def test_it_answers_and_tells_how_to_talk_to_it(installed: Installed) -> None:
    body = {
        "model": "bundled",
        "messages": [{"role": "user", "content": "Convert to camelCase: read_all_lines"}],
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{installed.front_port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60 * BUSY) as answer:
        assert json.load(answer)["choices"][0]["message"]["content"] == "readAllLines"
    assert f"gapless chat --url '127.0.0.1:{installed.grpc_port}'" in installed.invitation
    assert "make " not in installed.invitation
    said = installed.ask(
        "chat", "--url", f"127.0.0.1:{installed.grpc_port}", text="Convert to camelCase: read_all_lines\n"
    )
    assert said == "readAllLines\n"


def test_no_process_knows_the_checkout(installed: Installed) -> None:
    launcher = psutil.Process(installed.process.pid)
    processes = [launcher, *launcher.children(recursive=True)]
    assert len(processes) > 4
    for process in processes:
        paths = [process.cwd(), *process.environ().get("PYTHONPATH", "").split(os.pathsep)]
        assert [path for path in paths if Path(path).is_relative_to(ROOT)] == [], process.name()


def test_the_other_commands_work_from_there(installed: Installed) -> None:
    site = installed.home / "site"
    said = installed.ask("env", "--set", "engine.slots=3")
    assert f"installed in {site / 'gapless/server'}".replace(str(installed.home), "~") in said
    assert "written   below ~/.local/state/gapless\n" in said
    assert "engine.slots = 3" in said
    (instance,) = json.loads(installed.ask("control", "status", "--json"))["instances"]
    assert instance["state"] == "ready"
    assert installed.ask("finetune", "--set", "model.directory=bundled", "list") == ""
