"""Starts the instances and tritonserver as siblings, watches them, restarts processes that die, and ends all
of them.

The command line makes one and calls `serve`; it runs in one thread. How each process is started and watched
is in the other modules of this room.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import time
from collections.abc import Callable

from python_backends.launcher.address import check_ports
from python_backends.launcher.companion import Companion
from python_backends.launcher.front_process import FrontProcesses
from python_backends.launcher.health import FailedStarts, GiveUpError, Pulse
from python_backends.launcher.instances import InstanceProcesses
from python_backends.launcher.invitation import invitation
from python_backends.launcher.readiness import Readiness
from python_backends.launcher.run_files import RunFiles
from python_backends.launcher.stubs import PREDICTOR, STUBS
from python_backends.launcher.triton_server import ANSWER_S, TritonServer
from python_backends.linux.pauses import AwakeClock
from python_backends.linux.process_group import obeyed
from python_backends.linux.start_clock import start_clock
from python_backends.nouns.order import Order, RefusedOrderError
from python_backends.settings import Settings
from python_backends.watching.board import Board, front_name, instance_name
from python_backends.watching.launcher_record import LauncherRecord
from python_backends.wires.control import ask

log = logging.getLogger("gapless")

LEARNER = "learner"  # its name in the counts of restarts
LONGEST_LEARNER_PAUSE_S = 300.0  # before it is started again
HAVE_STREAMS = ("scheduler", "detokenizer")
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WATCH_EVERY_S = 0.2
LIVES_S = 5.0  # a tritonserver that ends sooner after it was ready counts as one that did not start
PREDICTOR_PAUSE_S = 10.0  # between two attempts to load it again
# enough time for a request to get from the door to the scheduler model, and for a last answer to its client
PASSING_S = 0.5
CLOSE_S = 2.0  # open requests have got their text so far, and an error, by then
LONGEST_LOOK_S = 2 * ANSWER_S + 1.0  # the pulse may be asking, too
TOGETHER_S = 1.0
SHORTAGE_S = 1.0  # pause after something that the host refuses


class StopError(Exception):
    """What takes long is left as it is."""


class StreamsDiedError(Exception):
    """The stub of a model that has the open streams is dead."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class UrgentError(Exception):
    """The stub of a model that requests need is dead; what they do not need is left as it is."""


class Supervisor:
    """Owns all processes of a server. Runs in the launcher's main thread."""

    def __init__(self, settings: Settings, files: RunFiles, processors: frozenset[int] | None) -> None:
        """Instances run on `processors` (None: those of the launcher); all other processes run on those of
        the launcher.
        """
        board = Board()
        self._settings = settings
        self._files = files
        instances = map(instance_name, range(settings.cluster.most_instances))
        fronts = map(front_name, range(settings.front.processes))
        self._record = LauncherRecord(
            board, (*instances, "tritonserver", *STUBS, PREDICTOR, LEARNER, *fronts)
        )
        self._instances = InstanceProcesses(settings, files, self._record, processors)
        self._server = TritonServer(settings, files, board)
        self._learner = Companion(
            LEARNER, "python_backends.learner", files, self._record, LONGEST_LEARNER_PAUSE_S
        )
        self._front = FrontProcesses(settings, files, self._record)
        self._readiness = Readiness(files.directory, settings.server.http_port)
        self._reload_at_s = 0.0  # the predictor, not before
        self._server_failures = FailedStarts("tritonserver")
        self._ready_s = -math.inf  # when tritonserver was ready last
        self._pulse = Pulse(self._server.answers)
        self._signals, self._signalled_s = 0, -math.inf  # how many came, and when the last one

    def serve(self) -> None:
        """Serves until a signal comes. Raises GiveUpError."""
        for name in obeyed(*STOPPING):
            signal.signal(name, self._count_signal)
        try:
            if self._start():
                self._watch()
                self._drain()
        finally:
            self._stop()

    def _start(self) -> bool:
        """Starts everything and waits until it is ready. Returns False if a signal came before that."""
        started_s = time.monotonic()
        log.info(
            "loading %s (%s engine, %s, %s)",
            self._settings.model_directory,
            self._settings.engine.kind,
            self._settings.model.device,
            self._settings.model.dtype,
        )
        check_ports(self._settings.server, self._settings.front.port)
        start_clock.ended("settings")
        self._instances.start()
        self._await(lambda: self._instances.is_ready, "an instance", self._check_first_start)
        start_clock.ended("an instance")
        log.info("model loaded after %.1f s; starting tritonserver", time.monotonic() - started_s)
        if not self._signals:
            self._server.start()
            self._await(self._server.is_ready, "tritonserver", self._check_first_start)
            self._ready_s = time.monotonic()
            start_clock.ended("tritonserver")
            self._await(self._front.is_ready, "the front", self._check_first_start)
        if self._signals:
            return False
        start_clock.ended("the front")
        log.info("ready after %s", start_clock)
        with contextlib.suppress(OSError, ValueError):  # its reader has gone
            front = self._settings.front
            text = invitation(self._settings.server, front.port, bool(front.tls_certificate))
            print(text, flush=True)
        return True

    def _watch(self) -> None:
        with contextlib.suppress(StopError):
            while not self._signals:
                self._patiently(self._pulse.start)
                self._patiently(self._heal)
                time.sleep(WATCH_EVERY_S)

    def _heal(self) -> None:
        self._instances.heal()
        self._heal_server()
        self._front.heal()
        if self._settings.predicts_lengths:
            self._learner.heal()
        self._say_readiness()
        self._files.keep_if_due()

    def _say_readiness(self) -> None:
        self._readiness.say(not self._server.suspects and not self._pulse.has_failed)

    def _await(self, ready: Callable[[], bool], what: str, check: Callable[[], None]) -> None:
        """Waits for `ready`, or a signal, and calls `check` meanwhile. Raises GiveUpError after
        server.ready_s.
        """
        clock = AwakeClock(LONGEST_LOOK_S)
        while not self._signals and not self._patiently(ready):
            self._patiently(check)
            if clock.advance() > self._settings.server.ready_s:
                raise GiveUpError(
                    f"{what} was not ready within {self._settings.server.ready_s:.0f} s (server.ready_s)"
                )
            time.sleep(0.05)

    def _patiently(self, look: Callable[[], bool | None]) -> bool | None:
        """Returns what `look` returns; None if the host refuses it for the moment (no files, memory or
        threads are left), which ends nothing: the next look tries again.
        """
        try:
            return look()
        except OSError as error:
            log.warning("the launcher could not look after its processes (%s); trying again", error)
            time.sleep(SHORTAGE_S)
            return None

    def _check_first_start(self) -> None:
        self._instances.look()
        self._server.go_on()
        if self._instances.has_ended():
            raise GiveUpError("no instance started; their messages are in the log above")
        if self._server.has_ended:
            raise GiveUpError("tritonserver did not start; its messages are in the log above")
        if self._front.has_ended:
            raise GiveUpError("the front did not start; its messages are in the log above")
        self._front.heal()

    def _heal_server(self) -> None:
        if not self._server.is_running:
            self._restart_server("tritonserver", "it has ended")
            return
        if self._pulse.is_lost:
            self._restart_server("tritonserver", "it no longer answers")
            return
        self._end_hung_stubs()
        try:
            self._heal_stubs()
        except StreamsDiedError as died:
            self._restart_server(died.model, "its stub has died, and its streams with it")

    def _end_hung_stubs(self) -> None:
        for model in self._server.end_hung_stubs():
            log.warning("model %s hangs: its process sent no heartbeat in time and was killed", model)

    def _heal_stubs(self) -> None:
        """Raises StopError and StreamsDiedError."""
        dead = self._dead_stubs()
        if dead - {PREDICTOR}:
            self._readiness.say(False)
        for model in dead - {PREDICTOR}:
            log.warning("the stub of %s has died; loading the model again", model)
            self._record.count_restart(model)
            if not self._server.reload(model, self._meanwhile):
                self._restart_server("tritonserver", f"{model} could not be loaded again")
                return
            self._pulse.forget()  # the ensemble was not ready without it
        if PREDICTOR in dead:
            self._heal_predictor()

    def _heal_predictor(self) -> None:
        """No request waits for it, so it is loaded again after a pause."""
        if time.monotonic() < self._reload_at_s:
            return
        log.warning("the stub of %s has died; loading the model again", PREDICTOR)
        self._record.count_restart(PREDICTOR)
        try:
            with contextlib.suppress(UrgentError):
                self._server.reload(PREDICTOR, self._beside_predictor)
        finally:
            self._reload_at_s = time.monotonic() + PREDICTOR_PAUSE_S

    def _beside_predictor(self) -> None:
        """As `_meanwhile`, while requests are served. Raises UrgentError, too."""
        self._meanwhile()
        self._patiently(self._look_at_needed)

    def _look_at_needed(self) -> None:
        self._end_hung_stubs()
        if self._server.dead_stubs() & set(STUBS):
            raise UrgentError
        self._say_readiness()

    def _meanwhile(self) -> None:
        """To be done several times a second while a model is loaded, which may take a minute. Raises
        StopError and StreamsDiedError.
        """
        self._patiently(self._instances.heal)
        self._patiently(self._front.heal)
        if self._signals:
            raise StopError
        self._patiently(lambda: bool(self._dead_stubs()))

    def _dead_stubs(self) -> set[str]:
        """Their models' names. Raises StreamsDiedError: Triton could load such a model again, but fails what
        waits for a dead one at one request a second.
        """
        dead = self._server.dead_stubs()
        for model in HAVE_STREAMS:
            if model in dead:
                raise StreamsDiedError(model)
        return dead

    def _restart_server(self, whose_fault: str, why: str) -> None:
        has_failed = self._server.has_ended and time.monotonic() - self._ready_s < LIVES_S
        self._server_failures.book(was_ready=not has_failed)
        log.warning("%s: %s; starting the server again", whose_fault, why)
        self._record.count_restart(whose_fault)
        self._readiness.say(False)
        self._server.kill()
        self._server.start(has_failed)
        self._await(self._server.is_ready, "tritonserver", self._check_restart)
        if self._signals:
            return
        self._ready_s = time.monotonic()
        self._pulse.forget()
        log.info("serving again")

    def _check_restart(self) -> None:
        self._instances.heal()
        self._front.heal()  # it waits for the server, with its clients
        self._server.go_on()
        if self._server.has_ended:
            self._server_failures.book(was_ready=False)
            self._server.kill()
            self._server.start(has_failed=True)

    def _drain(self) -> None:
        """Waits until open requests have ended; the door refuses new ones. A second signal ends the wait."""
        drain_s, signals = self._settings.server.drain_s, self._signals
        log.info("draining: open requests may end (at most %.0f s; Ctrl-C again ends at once)", drain_s)
        self._readiness.say(False)
        self._record.drain()
        end_s = time.monotonic() + drain_s
        time.sleep(PASSING_S)
        is_open = True
        while is_open and self._signals == signals and (left_s := end_s - time.monotonic()) > 0:
            is_open = self._has_open_requests(left_s)
            self._patiently(self._instances.heal)
            time.sleep(is_open * WATCH_EVERY_S)
        if is_open:
            with contextlib.suppress(OSError, RefusedOrderError):
                ask(self._files.directory, Order("close"), CLOSE_S)
        time.sleep(PASSING_S)

    def _has_open_requests(self, limit_s: float) -> bool:
        """True also if the scheduler model does not say it within `limit_s`."""
        try:
            return bool(ask(self._files.directory, Order("status"), min(limit_s, ANSWER_S))["open"])
        except (ConnectionError, FileNotFoundError):  # it is dead, and the streams with it
            return False
        except OSError:
            return True

    def _stop(self) -> None:
        self._pulse.stop()
        self._front.ask_to_end()
        self._learner.ask_to_end()
        self._server.stop()
        self._instances.stop(wait_s=3)
        self._learner.stop()
        self._front.stop()
        log.info("stopped")

    def _count_signal(self, *_: object) -> None:
        """Several at once are one: a `make serve` passes on what systemd sends to all processes."""
        now_s = time.monotonic()
        if now_s - self._signalled_s > TOGETHER_S:
            self._signals += 1
            self._signalled_s = now_s
