"""The tritonserver process: its health, its log and its end.

Finds out whether the server or one of its models is dead, and can load a model again. The supervisor decides
when. Tested in tests/server/test_recovery.py and tests/server/test_pauses.py.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import re
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable

from python_backends.launcher.health import slow_call
from python_backends.launcher.run_directories import remove_shared_memory
from python_backends.launcher.run_files import RunFiles
from python_backends.launcher.stubs import PREDICTOR, STUBS, Stubs
from python_backends.launcher.triton_command import (
    EXIT_TIMEOUT_S,
    command,
    environment,
    namesakes,
    stack_bytes,
)
from python_backends.launcher.triton_files import locate
from python_backends.linux.process_group import end_group, start_group
from python_backends.settings import Settings, SettingsError
from python_backends.watching.board import Board
from python_backends.watching.metrics import TIMESTAMP

log = logging.getLogger("gapless")

NOISE = ("Signal (15) received",)
WITHOUT_GPU = (
    "CUDA driver version is insufficient",
    "CudaDriverHelper",
    "NVML",
    "DCGM",
    "pinned memory pool",
    "pinned system memory",
)
OPEN_REQUESTS = ("gapless_requests_running", "gapless_requests_waiting")
UNLOAD_S, LOAD_S = 6.0, 60.0
MEANWHILE_S = 0.2
ANSWER_S = 5.0  # limit for a question that it answers from memory


class TritonServer:
    """The tritonserver process, of which there is at most one at a time, and its stubs."""

    def __init__(self, settings: Settings, run_files: RunFiles, board: Board) -> None:
        self._settings = settings.server
        self._models = (*STUBS, PREDICTOR) if settings.predicts_lengths else STUBS
        self._run_files = run_files
        self._run_directory = run_files.directory
        self._board = board
        self._key = ("gapless-key", secrets.token_hex(16))
        self._files = locate(self._run_directory)
        self._stack_bytes = stack_bytes()
        self._process: subprocess.Popen[str] | None = None
        self._stubs = Stubs(self._models, board, settings.streams.dead_after_s)

    @property
    def was_started(self) -> bool:
        return self._process is not None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._prepare()
        self._stubs.forget(self._models)
        self._process = start_group(
            command(self._settings, self._files, self._run_directory, (*self._models, "ensemble"), self._key),
            environment(self._files, self._run_directory, self._board),
            stack_bytes=self._stack_bytes,
            pass_fds=[self._board.fd],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        threading.Thread(target=_relay, args=[self._process.stdout], name="server log", daemon=True).start()

    def check_ports(self) -> None:
        """Raises SettingsError if one of the ports is in use: that process would answer the clients."""
        for name in ("http_port", "grpc_port", "metrics_port"):
            port = getattr(self._settings, name)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self._settings.address, port))
                except OSError as error:
                    raise SettingsError(
                        f"server.{name} = {port}: {error.strerror or error} on {self._settings.address}"
                    ) from error

    def is_ready(self) -> bool:
        return (
            self.is_running and self._get("/v2/health/ready")[0] == 200 and not self.dead_stubs() & set(STUBS)
        )

    def answers(self) -> bool:
        """Whether it reports that the ensemble takes requests. It does so even if a stub is dead."""
        return self._get("/v2/models/ensemble/ready", timeout_s=ANSWER_S)[0] == 200

    def dead_stubs(self) -> set[str]:
        """Returns the names of the models whose stub process is gone."""
        assert self._process is not None
        return self._stubs.dead(self._process.pid)

    def end_hung_stubs(self) -> set[str]:
        """Reads the beats of all stubs and kills those that have been silent for too long. Returns the names
        of their models.
        """
        self._stubs.look()
        hung = self._stubs.hung
        for model in hung:
            self._stubs.kill(model)
        self._stubs.forget(hung)
        return hung

    @property
    def suspects(self) -> set[str]:
        """Names of the models whose stubs were silent at the last look."""
        return self._stubs.suspects

    def reload(self, model: str, meanwhile: Callable[[], None]) -> bool:
        """Unloads and loads a model whose stub has died; the other models keep running. `load` alone would do
        nothing. `meanwhile` is called several times a second.

        Returns False if it fails or takes too long: a request that died inside the stub may keep Triton from
        unloading forever.
        """
        self._prepare()
        path = f"/v2/repository/models/{model}"

        def load_again() -> bool:
            return all(
                self._ask("POST", f"{path}/{verb}", self._settings.http_port, timeout_s)[0] == 200
                for verb, timeout_s in (("unload", UNLOAD_S), ("load", LOAD_S))
            )

        done = slow_call(load_again, meanwhile, MEANWHILE_S)
        self._stubs.forget([model])
        return done

    def may_have_open_requests(self, since_s: float) -> bool:
        """Returns False if the server is dead, or if /metrics, exported after `since_s` (Unix time), has no
        open requests. Else returns True.
        """
        if not self.is_running or "scheduler" in self.dead_stubs():
            return False
        text = self._get("/metrics", self._settings.metrics_port)[1]
        numbers = {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}
        return numbers.get(TIMESTAMP, 0.0) < since_s or any(numbers[name] > 0 for name in OPEN_REQUESTS)

    def stop(self) -> None:
        """Ends the server, by SIGTERM first, and then all processes of its group, orphaned stubs too."""
        self._end(EXIT_TIMEOUT_S + 1)

    def kill(self) -> None:
        self._end(0)

    def _prepare(self) -> None:
        """Writes the files that a new stub reads, in case the run directory was cleaned."""
        self._run_files.keep()
        try:
            locate(self._run_directory)
            namesakes(self._settings, self._run_directory)
        except OSError as error:
            log.warning("files for Triton can't be written again: %s", error)

    def _end(self, wait_s: float) -> None:
        if self._process is not None:
            end_group(self._process, wait_s)
            remove_shared_memory(self._run_directory)

    def _get(self, path: str, port: int = 0, timeout_s: float = 60) -> tuple[int, str]:
        return self._ask("GET", path, port or self._settings.http_port, timeout_s)

    def _ask(self, method: str, path: str, port: int, timeout_s: float) -> tuple[int, str]:
        """Returns HTTP status and text; status 0 if there is no valid answer."""
        connection = http.client.HTTPConnection(self._settings.address, port, timeout=timeout_s)
        try:
            connection.request(method, path, "{}" if method == "POST" else None, dict([self._key]))
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()


def _relay(lines: Iterable[str]) -> None:
    """Passes the server's log on, without the lines that it writes on every machine without a GPU."""
    for line in lines:
        if not any(noise in line for noise in (*NOISE, *WITHOUT_GPU)):
            with contextlib.suppress(OSError):  # the terminal is gone
                sys.stderr.write(line)
