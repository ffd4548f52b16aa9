"""docker-compose.yml as a user starts it, under a project name and ports of its
own; and clients that look on while something dies.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import grpc

from client import Client
from client.errors import GaplessError
from python_backends.linux.free_ports import free_ports
from tests.support.server.serving import Answer, wait_for

ROOT = Path(__file__).resolve().parents[2]
# The longest answer that the bundled model has room for: short ones would end before anything is killed.
LONG = {"text_input": "def read(", "max_tokens": 1900, "min_tokens": 1900}
MARKS = {  # what stands in the command line of each process
    "instance": "gapless-instance-0",
    "tritonserver": "bin/tritonserver",
    "launcher": "gapless-launcher",
    "tokenizer": "/tokenizer/",
    "scheduler": "/scheduler/",
    "detokenizer": "/detokenizer/",
}
PROCESS_LIST = (  # a line each, also where a command has lines of its own
    'for p in /proc/[0-9]*; do echo "${p#/proc/} $(tr "\\0\\n" "  " <$p/cmdline)"; done 2>/dev/null; true'
)


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
        wait_for(self.answers, 300)
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

    def pid(self, process: str) -> int:
        """Of one process of ours, as the container counts them; of its first
        one, as the host does. 0 while there is none.
        """
        if process == "init":
            return int(self.inspect(".State.Pid"))
        listed = subprocess.run(
            ["docker", "exec", self.container, "bash", "-c", PROCESS_LIST],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line.partition(" ") for line in listed.stdout.splitlines()]
        return next(
            (int(pid) for pid, _, command in lines if MARKS[process] in command and "/proc/" not in command),
            0,
        )

    def life(self, process: str) -> tuple[str, int]:
        """What changes when it is started again, be it in another life of the container."""
        return self.inspect(".State.StartedAt"), self.pid(process)

    def ready_to_signal(self, process: str, pid: int, number: int) -> Callable[[], object]:
        """What sends the signal at once when it is called: `docker exec` takes as
        long to start as an answer of some hundred tokens.
        """
        if process == "init":  # it can't be killed from inside of the container
            return partial(os.kill, pid, number)
        command = [
            "docker",
            "exec",
            "-i",
            self.container,
            "bash",
            "-c",
            f"echo ready; read; kill -{number} {pid}",
        ]
        waiting = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert waiting.stdout
        assert waiting.stdout.readline() == "ready\n"
        return partial(waiting.communicate, "\n", timeout=60)

    def answers(self) -> bool:
        """Whether a short request gets text: what readiness is about."""
        with contextlib.suppress(GaplessError), Client(f"127.0.0.1:{self.grpc_port}", timeout_s=5) as client:
            return bool(client.generate("ready?", max_tokens=4, min_tokens=4).text)
        return False


class HttpOnlooker:
    """Reads one answer over `generate_stream` from a thread of its own, and remembers how it ended."""

    def __init__(self, port: int, inputs: dict[str, Any]) -> None:
        self.answer = Answer()
        self.closed = ""  # how the connection broke
        self._port = port
        self._inputs = inputs
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def saw(self) -> str:
        """In the words of docs/operations.md."""
        if self.answer.error:
            return "an error"
        return "the whole answer" if self.answer.reasons else "a closed connection"

    def wait_for_text(self, timeout_s: float = 240) -> None:
        end_s = time.monotonic() + timeout_s
        while len(self.answer.text) < 20:
            assert time.monotonic() < end_s, f"no text: {self.answer} {self.closed}"
            time.sleep(0.005)

    def join(self, timeout_s: float = 500) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"this client still waits after {timeout_s} s: {self.answer}"

    def _read(self) -> None:
        try:
            with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
            ) as connection:
                self._read_from(connection)
        except (OSError, http.client.HTTPException) as error:
            self.closed = repr(error)

    def _read_from(self, connection: http.client.HTTPConnection) -> None:
        connection.request(
            "POST", "/v2/models/ensemble/generate_stream", json.dumps({"stream": True, **self._inputs})
        )
        with connection.getresponse() as response:
            self.answer.status = response.status
            for line in response:
                if line.startswith(b"data: "):
                    self.answer.add_json(json.loads(line[len("data: ") :]))
        if self.answer.status != 200:
            self.answer.error = self.answer.error or "refused"


class GrpcOnlooker(HttpOnlooker):
    """The same over gRPC, with the project's client and without a second try."""

    def _read(self) -> None:
        inputs = dict(self._inputs)
        with Client(f"127.0.0.1:{self._port}") as client:
            try:
                for piece in client.stream(inputs.pop("text_input"), **inputs):
                    self.answer.add(piece.text, piece.finish_reason, 0)
            except GaplessError as error:
                if isinstance(error.__context__, grpc.RpcError):
                    self.closed = repr(error)
                else:
                    self.answer.error = str(error)
