"""Serves: starts the instance and tritonserver as siblings, watches both, heals what dies, and ends without leaving anything behind.

    python -m python_backends.launcher [--settings gapless.toml] [--set model.directory=… --set engine.slots=64]

Ctrl-C or SIGTERM drains: open requests may end, new ones are refused. A second one ends at once.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import setproctitle

from python_backends.config import ROOT, Settings, SettingsError, dump, load
from python_backends.health import FailedStarts, GiveUpError, Pulse
from python_backends.instance_state import CLOSING, DRAINING, KEY, State, StateFile
from python_backends.restarts import RestartsFile
from python_backends.time_slice import SHORT_NS, ask_for_slice
from python_backends.triton_server import DIES_WITH_PARENT, PREDICTOR, STUBS, TritonServer, remove_shared_memory

log = logging.getLogger("gapless")

WATCH_EVERY_S = 0.2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0  # between two lives of the learner
PREDICTOR_PAUSE_S = 10.0  # between two attempts to load it again
PREFIX = "gapless-"  # of run directories
SETTLE_S = 1.2  # until what is under way has reached the metrics, which are written every 0.5 s, or the client


class InstanceProcess:
    """The process of one instance, as the launcher sees it."""

    def __init__(self, settings: Settings, run_directory: Path, number: int) -> None:
        self.name = f"instance {number}"
        self._restarts = RestartsFile(run_directory)
        self._settings = settings
        self._command = [sys.executable, "-m", "python_backends.instance", str(run_directory), str(number)]
        self._state = StateFile(run_directory, number)
        self._failed_starts = FailedStarts(self.name)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0

    @property
    def is_ready(self) -> bool:
        return self._state.read()[0] is State.READY

    def start(self) -> None:
        self._state.write_starting()
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # a library may live where only its user knows
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen([*DIES_WITH_PARENT, *self._command], env=environment, cwd=ROOT, start_new_session=True)
        self._started_s = time.monotonic()

    def heal(self) -> None:
        """Starts it again if it has ended or no longer beats. Raises GiveUpError."""
        assert self._process is not None
        if self._process.poll() is None and not self._is_stalled():
            return
        log.warning("%s %s; starting it again", self.name, self._what_happened())
        self._failed_starts.book(was_ready=self.is_ready)
        self._restarts.add("instance")
        self.stop(0)
        self.start()

    def stop(self, wait_s: float) -> None:
        if self._process is None:
            return
        if wait_s > 0:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _is_stalled(self) -> bool:
        if self._state.read()[0] is State.STARTING:
            return time.monotonic() - self._started_s > self._settings.server.ready_s
        return self._state.age_s() > self._settings.streams.dead_after_s

    def _what_happened(self) -> str:
        assert self._process is not None
        code = self._process.poll()
        return "no longer beats" if code is None else f"ended with {code}"


class LearnerProcess:
    """The learner, as the launcher sees it: started again when it ends, each time after twice as long, and never missed."""

    def __init__(self, run_directory: Path) -> None:
        self._command = [sys.executable, "-m", "python_backends.learner", str(run_directory)]
        self._process: subprocess.Popen[bytes] | None = None
        self._pause_s = FIRST_PAUSE_S
        self._start_at_s = 0.0

    def heal(self) -> None:
        """Starts it, the first time and whenever it has ended."""
        now_s = time.monotonic()
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            log.warning("the learner ended with %d; starting it again in %.0f s", self._process.returncode, self._pause_s)
            self._start_at_s, self._process = now_s + self._pause_s, None
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        if now_s >= self._start_at_s:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
            self._process = subprocess.Popen([*DIES_WITH_PARENT, *self._command], env=environment, cwd=ROOT, start_new_session=True)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Launcher:
    def __init__(self, settings: Settings, run_directory: Path) -> None:
        self._settings = settings
        self._run_directory = run_directory
        self._instance = InstanceProcess(settings, run_directory, 0)
        self._server = TritonServer(settings.server, run_directory, settings.predicts_lengths)
        self._learner = LearnerProcess(run_directory)
        self._reload_at_s = 0.0  # the predictor, not before
        self._server_failures = FailedStarts("tritonserver")
        self._pulse = Pulse(self._server.answers)
        self._restarts = RestartsFile(run_directory)
        self._signals = 0

    def serve(self) -> None:
        """Runs until a signal comes. Raises GiveUpError."""
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, self._count_signal)
        self._restarts.begin(("instance", "tritonserver", *STUBS, PREDICTOR))
        try:
            if self._start():
                self._watch()
                self._drain()
        finally:
            self._stop()

    def _start(self) -> bool:
        """False if a signal came before everything was ready."""
        started_s = time.monotonic()
        log.info("loading %s (%s engine, %s)", self._settings.model_directory, self._settings.engine.kind, self._settings.model.device)
        self._server.check_ports()
        self._instance.start()
        self._await(lambda: self._instance.is_ready, "the instance", self._check_first_start)
        log.info("model loaded after %.1f s; starting tritonserver", time.monotonic() - started_s)
        if not self._signals:
            self._server.start()
            self._await(self._server.is_ready, "tritonserver", self._check_first_start)
        if self._signals:
            return False
        log.info("ready after %.1f s", time.monotonic() - started_s)
        print(self._invitation(), flush=True)
        return True

    def _watch(self) -> None:
        self._pulse.start()
        while not self._signals:
            self._instance.heal()
            self._heal_server()
            if self._settings.predicts_lengths:
                self._learner.heal()
            time.sleep(WATCH_EVERY_S)

    def _await(self, ready: Callable[[], bool], what: str, check: Callable[[], None]) -> None:
        """Until `ready`, or a signal. `check` looks after everything else meanwhile."""
        end_s = time.monotonic() + self._settings.server.ready_s
        while not self._signals and not ready():
            check()
            if time.monotonic() > end_s:
                raise GiveUpError(f"{what} was not ready within {self._settings.server.ready_s:.0f} s (server.ready_s)")
            time.sleep(0.05)

    def _check_first_start(self) -> None:
        if self._instance.has_ended():
            raise GiveUpError("the instance did not start; what it said stands above")
        if self._server.was_started and not self._server.is_running:
            raise GiveUpError("tritonserver did not start; what it said stands above")

    def _heal_server(self) -> None:
        if not self._server.is_running:
            self._restart_server("tritonserver", "it has ended")
            return
        if self._pulse.is_lost:
            self._restart_server("tritonserver", "it no longer answers")
            return
        dead = self._server.dead_stubs()
        if "scheduler" in dead:
            self._restart_server("scheduler", "its stub has died, and its streams with it")
            return
        if PREDICTOR in dead:
            self._heal_predictor()
        for model in dead - {PREDICTOR}:
            log.warning("the stub of %s has died; loading the model again", model)
            self._restarts.add(model)
            if not self._server.reload(model):
                self._restart_server("tritonserver", f"{model} could not be loaded again")
                return

    def _heal_predictor(self) -> None:
        """Nothing waits for it, so it may as well stay away for a while."""
        if time.monotonic() < self._reload_at_s:
            return
        log.warning("the stub of %s has died; loading the model again", PREDICTOR)
        self._restarts.add(PREDICTOR)
        self._server.reload(PREDICTOR)
        self._reload_at_s = time.monotonic() + PREDICTOR_PAUSE_S

    def _restart_server(self, whose_fault: str, why: str) -> None:
        log.warning("%s: %s; starting the server again", whose_fault, why)
        self._restarts.add(whose_fault)
        self._start_server()
        self._await(self._server.is_ready, "tritonserver", self._check_restart)
        self._server_failures.book(was_ready=True)
        self._pulse.forget()
        log.info("serving again")

    def _start_server(self) -> None:
        self._server.kill()
        self._server.start()

    def _check_restart(self) -> None:
        self._instance.heal()
        if not self._server.is_running:
            self._server_failures.book(was_ready=False)
            self._start_server()

    def _drain(self) -> None:
        """New requests are refused at the door; open ones may end. A second signal cuts it short."""
        drain_s, signals = self._settings.server.drain_s, self._signals
        log.info("draining: open requests may end (at most %.0f s; Ctrl-C again ends at once)", drain_s)
        (self._run_directory / DRAINING).touch()
        end_s = time.monotonic() + drain_s
        time.sleep(SETTLE_S)
        while self._server.has_open_requests() and time.monotonic() < end_s and self._signals == signals:
            self._instance.heal()
            time.sleep(WATCH_EVERY_S)
        (self._run_directory / CLOSING).touch()  # what is open still gets its last answer
        time.sleep(SETTLE_S)

    def _stop(self) -> None:
        self._pulse.stop()
        self._server.stop()
        self._instance.stop(wait_s=3)
        self._learner.stop()
        log.info("stopped")

    def _count_signal(self, *_: object) -> None:
        self._signals += 1

    def _invitation(self) -> str:
        server = self._settings.server
        url = f"http://{server.address}:{server.http_port}/v2/models/ensemble/generate_stream"
        messages = r'"messages": "[{\"role\": \"user\", \"content\": \"Convert to camelCase: def read_all_lines(file_name): pass\"}]"'
        return f"""
Gapless is ready on {server.address}: HTTP {server.http_port}, gRPC {server.grpc_port}, metrics {server.metrics_port}
Try it in another terminal:

  curl -sN {url} -d '{{{messages}, "stream": true}}'

  {_shown(sys.executable)} client/stream.py --port {server.grpc_port} "Convert to camelCase: def read_all_lines(file_name): pass"

  make chat{"" if server.grpc_port == 8001 else f" URL={server.address}:{server.grpc_port}"}

Ctrl-C ends it.
"""


def _shown(path: str) -> str:
    """Relative to the checkout where that is shorter to type."""
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(ROOT))
    return path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gapless",
        description="Serves a language model on NVIDIA Triton Inference Server. Every setting stands, commented, in gapless.toml.",
        epilog="example: python -m python_backends.launcher --set model.directory=/models/qwen --set engine.slots=64",
    )
    parser.add_argument("--settings", type=Path, default=ROOT / "gapless.toml", metavar="FILE", help="default: gapless.toml")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", dest="overrides", help="one setting")
    return parser.parse_args()


def hold(run_directory: Path) -> IO[str]:
    """A lock on the run directory for as long as this process lives, however it ends."""
    held = (run_directory / "launcher").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


def sweep(parent: Path) -> None:
    """Removes what launchers that were killed have left behind: run directories that nobody holds, and their shared memory."""
    for lock in parent.glob(f"{PREFIX}*/launcher"):
        with contextlib.suppress(OSError), lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_shared_memory(lock.parent)
            shutil.rmtree(lock.parent, ignore_errors=True)


def main() -> int:
    setproctitle.setproctitle("gapless-launcher")
    logging.basicConfig(level=logging.INFO, format="gapless: %(message)s", stream=sys.stderr)
    asked = arguments()
    ask_for_slice(SHORT_NS)  # for the server and its models as well; instances ask otherwise
    sweep(Path(tempfile.gettempdir()))
    run_directory = Path(tempfile.mkdtemp(prefix=PREFIX))  # 0700
    try:
        held = hold(run_directory)
        settings = load(asked.settings, dict(item.partition("=")[::2] for item in asked.overrides))
        dump(settings, run_directory / "settings.json")
        (run_directory / KEY).write_bytes(secrets.token_bytes(16))
        Launcher(settings, run_directory).serve()
    except (SettingsError, GiveUpError) as error:
        log.error("%s", error)
        return 1
    finally:
        shutil.rmtree(run_directory, ignore_errors=True)
    held.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
