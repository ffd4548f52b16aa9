"""docker-compose.yml as a user starts it, under a project name and ports of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import subprocess
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

import psutil

from client import Client
from client.errors import GaplessError
from python_backends.linux.free_ports import free_ports
from tests.support.server.serving import wait_for

ROOT = Path(__file__).resolve().parents[2]
# some seconds of the bundled model with nothing else to do: shorter ones would end before anything is killed
LONG = {"text_input": "def read(", "max_tokens": 1200, "min_tokens": 1200}
MARKS = {  # what stands in the command line of each process
    "init": "docker-init",
    "instance": "gapless-instance-0",
    "tritonserver": "bin/tritonserver",
    "launcher": "gapless-launcher",
    "tokenizer": "/tokenizer/",
    "scheduler": "/scheduler/",
    "detokenizer": "/detokenizer/",
}
look_until = partial(wait_for, every_s=0.5)  # a command of Docker takes a tenth of a processor's second


def run(*words: str, timeout_s: float = 120, **environment: str) -> str:
    """What the command prints. Raises AssertionError with all that it said."""
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=timeout_s,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (
        f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout


def compose_command() -> list[str]:
    """The plug-in where there is one, else docker-compose 1.29."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return ["docker", "compose"] if plugin.returncode == 0 else ["docker-compose"]


KEY = "sk-composed"  # of OpenAI's interface


class Composed:
    def __init__(self, project: str, model: Path, arguments: str = "", cluster: bool = False) -> None:
        """`cluster`: the two containers of that profile, not the one that `docker compose up` starts."""
        self.project = project
        self.model = model
        self.service = "gapless-cluster" if cluster else "gapless"
        self._services = [self.service, "gapless-host"] if cluster else []
        prefix = "GAPLESS_CLUSTER" if cluster else "GAPLESS"
        self.http_port, self.grpc_port, self.metrics_port, self.front_port = free_ports(4)
        self._environment = {
            "GAPLESS_MODEL": str(model),
            # two that wait for each other are slow on a busy machine
            "GAPLESS_ARGS": f"--set engine.threads=1 --set model.dtype=float32 {arguments}",
            f"{prefix}_HTTP_PORT": str(self.http_port),
            f"{prefix}_GRPC_PORT": str(self.grpc_port),
            f"{prefix}_METRICS_PORT": str(self.metrics_port),
            f"{prefix}_FRONT_PORT": str(self.front_port),
            "GAPLESS_API_KEY": KEY,
        }
        self.cold_start_s = 0.0
        self._command = [*compose_command(), "--project-name", project]

    def compose(self, *words: str, timeout_s: float = 120) -> str:
        return run(*self._command, *words, timeout_s=timeout_s, **self._environment)

    def up(self) -> None:
        """Starts everything, and waits for a first answer."""
        started_s = time.monotonic()
        self.__dict__.pop("container", None)  # another one after `down`
        self.compose("up", "--detach", *self._services)
        look_until(self.answers, 300)
        self.cold_start_s = time.monotonic() - started_s

    @cached_property
    def container(self) -> str:
        """Its id, which stays the same when it is restarted."""
        return self.compose("ps", "-q", self.service).strip()

    def inspect(self, path: str) -> str:
        """One field of the container, as `docker inspect --format` writes it."""
        return run("docker", "inspect", "--format", "{{" + path + "}}", self.container).strip()

    def inside(self, script: str) -> str:
        return run("docker", "exec", self.container, "bash", "-c", script)

    def log(self) -> str:
        """What the container has printed."""
        return run("bash", "-c", f"docker logs {self.container} 2>&1")

    def process(self, name: str) -> psutil.Process | None:
        """One of ours, as this host sees it; None while there is none. It differs from the one after it."""
        for each in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(OSError):
                if MARKS[name] in " ".join(each.info["cmdline"] or []) and self._has(each):
                    return each
        return None

    def _has(self, process: psutil.Process) -> bool:
        return self.container in Path(f"/proc/{process.pid}/cgroup").read_text()

    def ready_to_kill(self, process: psutil.Process, name: str) -> Callable[[], object]:
        """What kills it at once when it is called: `docker exec` takes as long to start as an answer of some
        hundred tokens.
        """
        if name == "init":  # it can't be killed from inside of the container
            return process.kill
        status = Path(f"/proc/{process.pid}/status").read_text()
        (pid,) = re.findall(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)  # as the container counts
        command = ["docker", "exec", "-i", self.container, "bash", "-c", f"echo ready; read; kill -9 {pid}"]
        waiting = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert waiting.stdout
        assert waiting.stdout.readline() == "ready\n"
        return partial(waiting.communicate, "\n", timeout=60)

    def metrics(self) -> dict[str, float]:
        """Those of ours, by name with labels."""
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=60)
        ) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        found = re.findall(r"^(gapless_\S+) (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    def answers(self) -> bool:
        """Whether a short request gets text: what readiness is about."""
        with contextlib.suppress(GaplessError), Client(f"127.0.0.1:{self.grpc_port}", timeout_s=5) as client:
            return bool(client.generate("ready?", max_tokens=4, min_tokens=4).text)
        return False
