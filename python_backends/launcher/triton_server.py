"""The tritonserver process: its health, its log and its end.

Finds out whether the server or one of its models is dead, and can load a model again. The supervisor decides
when.
"""

from __future__ import annotations

import http.client
import logging
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable
from functools import partial

from python_backends.launcher.address import ip_of
from python_backends.launcher.connections import REFUSAL, ConnectionBound, allow_files
from python_backends.launcher.health import Start, slow_call, start_thread
from python_backends.launcher.run_directories import remove_shared_memory
from python_backends.launcher.run_files import RunFiles
from python_backends.launcher.server_log import relay
from python_backends.launcher.stubs import PREDICTOR, STUBS, Stubs
from python_backends.launcher.triton_command import (
    EXIT_TIMEOUT_S,
    command,
    environment,
    namesakes,
    stack_bytes,
)
from python_backends.launcher.triton_files import locate
from python_backends.linux.process_group import deaf, end_group, start_group
from python_backends.settings import ROOT, Settings
from python_backends.watching.board import Board

log = logging.getLogger("gapless")

UNLOAD_S, LOAD_S = 6.0, 60.0
MEANWHILE_S = 0.2
ANSWER_S = 5.0  # limit for a question that it answers from memory


class TritonServer:
    """The tritonserver process, of which there is at most one at a time, and its stubs."""

    def __init__(self, settings: Settings, run_files: RunFiles, board: Board) -> None:
        self._settings = settings.server
        self._ip = ip_of(settings.server.address)
        self._models = (*STUBS, PREDICTOR) if settings.encodes_texts else STUBS
        self._run_files = run_files
        self._run_directory = run_files.directory
        self._board = board
        self._key = ("gapless-key", secrets.token_hex(16))
        self._repository = ROOT / self._settings.model_repository
        self._packages = settings.packages_of_others
        self._files = locate(self._run_directory, self._repository, self._packages)
        self._stack_bytes = stack_bytes()
        self._max_files = allow_files(settings.streams.max_open)
        self._process: subprocess.Popen[str] | None = None
        self._start = Start("tritonserver", self._start_process)
        self._kept = self._connection(ANSWER_S)
        self._asking = threading.Lock()
        self._stubs = Stubs(self._models, board, settings.streams.dead_after_s)

    @property
    def has_ended(self) -> bool:
        """Whether it was started and runs no more."""
        return self._process is not None and not self.is_running

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, has_failed: bool = False) -> None:
        """`go_on` is to be called several times a second from then on: it starts after a pause if the last
        start has failed, or the host refuses.
        """
        self._process = None
        self._start.begin(has_failed)

    def go_on(self) -> None:
        self._start.go_on()

    def _start_process(self) -> None:
        """Raises OSError if the host refuses."""
        self._prepare()
        self._stubs.forget(self._models)
        # of one connection it is asked whether it answers: no other may be taken while too many are open
        self._kept = self._connection(ANSWER_S)
        self._process = start_group(
            deaf(
                command(
                    self._settings, self._files, self._run_directory, (*self._models, "ensemble"), self._key
                )
            ),
            environment(self._files, self._board),
            stack_bytes=self._stack_bytes,
            cwd=self._run_directory,
            pass_fds=[self._board.fd],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            self._attend(self._process)
        except OSError:
            self.kill()
            self._process = None
            raise

    def _attend(self, process: subprocess.Popen[str]) -> None:
        """Starts the threads that it needs here. Raises OSError if the host refuses."""
        assert process.stdout is not None
        try:
            start_thread(partial(relay, process.stdout), "server log")
        except OSError:
            process.stdout.close()
            raise
        server = self._settings
        refusals = {server.http_port: REFUSAL, server.grpc_port: b"", server.metrics_port: REFUSAL}
        bound = ConnectionBound(process.pid, refusals, self._max_files)
        start_thread(bound.run, "connections")

    def is_ready(self) -> bool:
        return self.is_running and self._says_200("/v2/health/ready") and not self.dead_stubs() & set(STUBS)

    def answers(self) -> bool:
        """Whether it reports that the ensemble takes requests. It does so even if a stub is dead."""
        return self._says_200("/v2/models/ensemble/ready")

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
                self._post(f"{path}/{verb}", timeout_s)
                for verb, timeout_s in (("unload", UNLOAD_S), ("load", LOAD_S))
            )

        def while_it_loads() -> None:
            self._stubs.forget([model])  # it is silent while it is loaded
            meanwhile()

        done = slow_call(load_again, while_it_loads, MEANWHILE_S)
        self._stubs.forget([model])
        return done

    def stop(self) -> None:
        """Ends the server, by SIGINT first, and then all processes of its group, orphaned stubs too."""
        self._kept.close()  # else tritonserver waits for its end
        self._end(EXIT_TIMEOUT_S + 1)

    def kill(self) -> None:
        self._end(0)

    def _prepare(self) -> None:
        """Writes the files that a new stub reads, in case the run directory was cleaned."""
        self._run_files.keep()
        try:
            locate(self._run_directory, self._repository, self._packages)
            namesakes(self._settings, self._run_directory)
        except OSError as error:
            log.warning("files for Triton can't be written again: %s", error)

    def _end(self, wait_s: float) -> None:
        if self._process is not None:
            # it is deaf to SIGTERM; SIGINT ends it in the same way
            end_group(self._process, wait_s, signal.SIGINT)
            remove_shared_memory(self._run_directory)

    def _says_200(self, path: str) -> bool:
        with self._asking:
            return self._says_200_on(self._kept, "GET", path)

    def _post(self, path: str, timeout_s: float) -> bool:
        connection = self._connection(timeout_s)
        try:
            return self._says_200_on(connection, "POST", path)
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._ip, self._settings.http_port, timeout=timeout_s)

    def _says_200_on(self, connection: http.client.HTTPConnection, method: str, path: str) -> bool:
        """False, and a closed connection, if there is no valid answer."""
        try:
            connection.request(method, path, "{}" if method == "POST" else None, dict([self._key]))
            response = connection.getresponse()
            response.read()
            return response.status == 200
        except (OSError, http.client.HTTPException):
            connection.close()
            return False
