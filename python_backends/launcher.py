"""Serves: starts the instance and tritonserver as siblings, watches both, heals what dies, and ends without leaving anything behind.

    python -m python_backends.launcher [--settings gapless.toml] [--set model.directory=… --set engine.slots=64]

Ctrl-C or SIGTERM drains: open requests may end, new ones are refused. A second one ends at once.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import setproctitle

from python_backends.config import ROOT, Settings, SettingsError, dump, load
from python_backends.instance_state import DRAINING, State, StateFile
from python_backends.triton_server import TritonServer

log = logging.getLogger("gapless")

WATCH_EVERY_S = 0.2
MAX_RESTARTS = 5  # within RESTART_WINDOW_S; more means that something is wrong for good
RESTART_WINDOW_S = 60.0
SETTLE_S = 0.5  # until what is under way has reached the metrics, or the client


class GiveUpError(RuntimeError):
    """Something that has to run does not stay up."""


class Restarts:
    """Counts how often something had to be started again lately."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._times: deque[float] = deque(maxlen=MAX_RESTARTS)

    def count(self) -> None:
        now_s = time.monotonic()
        if len(self._times) == MAX_RESTARTS and now_s - self._times[0] < RESTART_WINDOW_S:
            raise GiveUpError(f"{self._what} was started {MAX_RESTARTS} times within {RESTART_WINDOW_S:.0f} s and does not stay up")
        self._times.append(now_s)


class InstanceProcess:
    """The process of one instance, as the launcher sees it."""

    def __init__(self, settings: Settings, run_directory: Path, number: int) -> None:
        self.name = f"instance {number}"
        self._settings = settings
        self._command = [sys.executable, "-m", "python_backends.instance", str(run_directory), str(number)]
        self._state = StateFile(run_directory, number)
        self._restarts = Restarts(self.name)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0

    @property
    def is_ready(self) -> bool:
        return self._state.read()[0] is State.READY

    def start(self) -> None:
        self._state.write(State.STARTING)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(self._command, env=environment, cwd=ROOT, start_new_session=True)
        self._started_s = time.monotonic()

    def heal(self) -> None:
        """Starts it again if it has ended or no longer beats. Raises GiveUpError."""
        assert self._process is not None
        if self._process.poll() is None and not self._is_stalled():
            return
        log.warning("%s %s; starting it again", self.name, self._what_happened())
        self._restarts.count()
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

    def has_failed_to_start(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _is_stalled(self) -> bool:
        if self._state.read()[0] is State.STARTING:
            return time.monotonic() - self._started_s > self._settings.server.ready_s
        return self._state.age_s() > self._settings.streams.dead_after_s

    def _what_happened(self) -> str:
        assert self._process is not None
        code = self._process.poll()
        return "no longer beats" if code is None else f"ended with {code}"


class Launcher:
    def __init__(self, settings: Settings, run_directory: Path) -> None:
        self._settings = settings
        self._run_directory = run_directory
        self._instance = InstanceProcess(settings, run_directory, 0)
        self._server = TritonServer(settings.server, run_directory)
        self._server_restarts = Restarts("tritonserver")
        self._signals = 0

    def serve(self) -> None:
        """Runs until a signal comes. Raises GiveUpError."""
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, self._count_signal)
        try:
            self._start()
            while not self._signals:
                self._instance.heal()
                self._heal_server()
                time.sleep(WATCH_EVERY_S)
            self._drain()
        finally:
            self._stop()

    def _start(self) -> None:
        started_s = time.monotonic()
        log.info("loading %s (%s engine, %s)", self._settings.model_directory, self._settings.engine.kind, self._settings.model.device)
        self._instance.start()
        self._await(lambda: self._instance.is_ready, "the instance")
        log.info("model loaded after %.1f s; starting tritonserver", time.monotonic() - started_s)
        self._server.start()
        self._await(self._server.is_ready, "tritonserver")
        log.info("ready after %.1f s", time.monotonic() - started_s)
        print(self._invitation(), flush=True)

    def _await(self, ready: object, what: str) -> None:
        assert callable(ready)
        end_s = time.monotonic() + self._settings.server.ready_s
        while not ready() and not self._signals:
            if self._instance.has_failed_to_start() or (what == "tritonserver" and not self._server.is_running):
                raise GiveUpError(f"{what} did not start; what it said stands above")
            if time.monotonic() > end_s:
                raise GiveUpError(f"{what} was not ready within {self._settings.server.ready_s:.0f} s (server.ready_s)")
            time.sleep(0.05)

    def _heal_server(self) -> None:
        if not self._server.is_running:
            self._restart_server("tritonserver has ended")
            return
        dead = self._server.dead_stubs()
        if "scheduler" in dead:
            self._restart_server("the scheduler's stub has died, and its streams with it")
            return
        for model in dead:
            log.warning("the stub of %s has died; loading the model again", model)
            if not self._server.reload(model):
                self._restart_server(f"{model} could not be loaded again")
                return

    def _restart_server(self, why: str) -> None:
        log.warning("%s; starting the server again", why)
        self._server_restarts.count()
        self._server.kill()
        self._server.start()
        self._await(self._server.is_ready, "tritonserver")
        log.info("serving again")

    def _drain(self) -> None:
        """New requests are refused at the door; open ones may end. A second signal cuts it short."""
        drain_s, signals = self._settings.server.drain_s, self._signals
        log.info("draining: open requests may end (at most %.0f s; Ctrl-C again ends at once)", drain_s)
        (self._run_directory / DRAINING).touch()
        end_s = time.monotonic() + drain_s
        time.sleep(SETTLE_S)
        while self._server.num_open_requests() and time.monotonic() < end_s and self._signals == signals:
            time.sleep(WATCH_EVERY_S)
        time.sleep(SETTLE_S)

    def _stop(self) -> None:
        self._server.stop()
        self._instance.stop(wait_s=3)
        log.info("stopped")

    def _count_signal(self, *_: object) -> None:
        self._signals += 1

    def _invitation(self) -> str:
        server = self._settings.server
        url = f"http://{server.address}:{server.http_port}/v2/models/ensemble/generate_stream"
        messages = r'"messages": "[{\"role\": \"user\", \"content\": \"Convert to camelCase: read_all_lines\"}]"'
        return f"""
Gapless is ready on {server.address}: HTTP {server.http_port}, gRPC {server.grpc_port}, metrics {server.metrics_port}
Try it in another terminal:

  curl -sN {url} -d '{{{messages}, "stream": true}}'

  {_shown(sys.executable)} client/stream.py --port {server.grpc_port} "Convert to camelCase: read_all_lines"

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


def main() -> int:
    setproctitle.setproctitle("gapless-launcher")
    logging.basicConfig(level=logging.INFO, format="gapless: %(message)s", stream=sys.stderr)
    asked = arguments()
    run_directory = Path(tempfile.mkdtemp(prefix="gapless-"))  # 0700
    try:
        settings = load(asked.settings, dict(item.partition("=")[::2] for item in asked.overrides))
        dump(settings, run_directory / "settings.json")
        Launcher(settings, run_directory).serve()
    except (SettingsError, GiveUpError) as error:
        log.error("%s", error)
        return 1
    finally:
        shutil.rmtree(run_directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
