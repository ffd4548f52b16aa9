"""What the launcher decides between its looks; processes and server are played, sleeping takes no time."""

from __future__ import annotations

import errno
import math
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest

from python_backends.launcher import supervisor
from python_backends.launcher.health import (
    MAX_FAILED_STARTS,
    MAX_FAILURES,
    FailedStarts,
    GiveUpError,
    Pulse,
)
from python_backends.launcher.stubs import PREDICTOR
from python_backends.launcher.supervisor import LIVES_S, StopError, Supervisor
from python_backends.linux.pauses import AwakeClock
from python_backends.nouns.order import Order
from python_backends.settings import ServerSettings, Settings

Answer = Callable[[float], dict[str, int]]  # to a question that has so many seconds


class Nothing:
    """Does whatever it is asked to."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Server:
    """A tritonserver that runs."""

    def __init__(self) -> None:
        self.is_running, self.has_ended = True, False
        self.suspects: set[str] = set()
        self.dead: set[str] = set()
        self.num_starts = 0
        self.loads: Callable[[Callable[[], None]], bool] = lambda _: True

    def dead_stubs(self) -> set[str]:
        return self.dead

    def end_hung_stubs(self) -> set[str]:
        return set()

    def reload(self, model: str, meanwhile: Callable[[], None]) -> bool:
        done = self.loads(meanwhile)
        self.dead -= {model}
        return done

    def kill(self) -> None:
        self.is_running = False

    def start(self, has_failed: bool = False) -> None:
        self.num_starts += 1
        self.is_running, self.has_ended, self.dead = True, False, set()

    def go_on(self) -> None:
        pass

    def is_ready(self) -> bool:
        return self.is_running


class Launcher(Supervisor):
    def __init__(self, **settings: Any) -> None:
        self._settings = Settings(server=ServerSettings(**settings))
        self._server = self.server = Server()  # type: ignore[assignment]
        self._instances = self._readiness = self._learner = self._front = Nothing()  # type: ignore[assignment]
        self._files = self._record = Nothing()  # type: ignore[assignment]
        self._server_failures = FailedStarts("tritonserver")
        self._ready_s = -math.inf
        self._pulse = Pulse(lambda: True)
        self._reload_at_s = 0.0
        self._signals, self._signalled_s = 0, -math.inf

    def signal(self, number: int = 1) -> None:
        self._signals += number

    def look(self) -> None:
        self._patiently(self._heal)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes when the launcher sleeps."""
    made = [1000.0]

    def sleep(seconds: float) -> None:
        made[0] += seconds

    monkeypatch.setattr("time.monotonic", lambda: made[0])
    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr(supervisor, "AwakeClock", partial(AwakeClock, clock=lambda: made[0]))
    return made


@pytest.fixture
def launcher(now: list[float]) -> Launcher:
    return Launcher(drain_s=30.0, ready_s=60.0)


def test_a_server_is_not_ended_for_what_it_answered_while_a_model_was_loaded(launcher: Launcher) -> None:
    def slowly(_: Callable[[], None]) -> bool:
        launcher._pulse._failures = MAX_FAILURES
        return True

    launcher.server.dead, launcher.server.loads = {"tokenizer"}, slowly
    for _ in range(3):
        launcher.look()
    assert launcher.server.num_starts == 0


def test_a_server_that_can_not_load_a_model_again_is_started_again(launcher: Launcher) -> None:
    launcher.server.dead, launcher.server.loads = {"tokenizer"}, lambda _: False
    launcher.look()
    assert launcher.server.num_starts == 1


@pytest.mark.parametrize("model", ["scheduler", "detokenizer"])
def test_a_server_whose_streams_have_died_is_started_again(launcher: Launcher, model: str) -> None:
    """Triton could load the model again, and would fail what waits for the old one slowly."""
    launcher.server.dead = {model}
    launcher.look()
    assert launcher.server.num_starts == 1


@pytest.mark.parametrize("loaded", ["tokenizer", PREDICTOR])
def test_a_stub_that_dies_while_another_model_is_loaded_is_not_waited_for(
    launcher: Launcher, loaded: str
) -> None:
    """To load one may take a minute, in which no request would be answered."""
    looks: list[str] = []

    def slowly(meanwhile: Callable[[], None]) -> bool:
        for number in range(100):
            if number == 3:
                launcher.server.dead = {loaded, "scheduler"}
            looks.append(loaded)
            meanwhile()
        return True

    launcher.server.dead, launcher.server.loads = {loaded}, slowly
    launcher.look()
    assert (len(looks), launcher.server.num_starts) == (4, 1)


def test_what_requests_need_is_loaded_before_the_predictor(launcher: Launcher) -> None:
    loaded: list[str] = []
    reload = launcher.server.reload

    def noted(model: str, meanwhile: Callable[[], None]) -> bool:
        loaded.append(model)
        return reload(model, meanwhile)

    launcher.server.reload = noted  # type: ignore[method-assign]
    launcher.server.dead = {PREDICTOR, "tokenizer"}
    launcher.look()
    assert loaded == ["tokenizer", PREDICTOR]


def test_the_server_is_ready_while_the_predictor_is_loaded(launcher: Launcher) -> None:
    said: list[bool] = []
    launcher._readiness.say = said.append  # type: ignore[method-assign]

    def slowly(meanwhile: Callable[[], None]) -> bool:
        meanwhile()
        launcher.server.suspects = {"scheduler"}
        meanwhile()
        return True

    launcher.server.dead, launcher.server.loads = {PREDICTOR}, slowly
    launcher._heal_server()
    assert said == [True, False]


def test_the_predictor_is_left_while_it_is_loaded_when_the_tokenizer_dies(launcher: Launcher) -> None:
    looks: list[str] = []

    def slowly(meanwhile: Callable[[], None]) -> bool:
        for _ in range(100):
            looks.append(PREDICTOR)
            meanwhile()
            launcher.server.dead = {PREDICTOR, "tokenizer"}
        return True

    launcher.server.dead, launcher.server.loads = {PREDICTOR}, slowly
    launcher.look()
    assert len(looks) == 2
    launcher.server.loads = lambda _: True
    launcher.look()
    assert launcher.server.dead == {PREDICTOR}, "the predictor is loaded after a pause"


@pytest.mark.parametrize("model", ["tokenizer", PREDICTOR])
def test_a_signal_does_not_wait_for_a_model_that_is_loaded(launcher: Launcher, model: str) -> None:
    def for_ever(meanwhile: Callable[[], None]) -> bool:
        while True:
            launcher.signal()
            meanwhile()

    launcher.server.dead, launcher.server.loads = {model}, for_ever
    with pytest.raises(StopError):
        launcher.look()
    launcher._signals = 0
    launcher._watch()
    launcher._pulse.stop()
    assert launcher._signals == 1
    assert launcher.server.num_starts == 0


def test_what_the_host_refuses_for_a_moment_ends_nothing(
    launcher: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, without files no process can be looked for; it is not dead for that."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    launcher.server.dead, launcher.server.loads = {"tokenizer"}, refuse
    for _ in range(3):
        launcher.look()
    assert caplog.text.count("Too many open files); trying again") == 3
    launcher.server.loads = lambda _: True
    launcher.look()
    assert (launcher.server.num_starts, launcher.server.dead) == (0, set())


def test_a_server_that_the_host_refuses_to_start_is_waited_for(launcher: Launcher) -> None:
    refusals = [OSError("no memory")] * 3

    def go_on() -> None:
        if refusals:
            raise refusals.pop()
        launcher.server.is_running = True

    launcher.server.is_running, launcher.server.start = False, lambda _: None  # type: ignore[method-assign]
    launcher.server.go_on = go_on  # type: ignore[method-assign]
    launcher.look()
    assert not refusals
    assert launcher.server.is_running


def _end(server: Server) -> None:
    server.is_running, server.has_ended = False, True


def test_a_server_that_always_ends_at_once_is_given_up(launcher: Launcher, now: list[float]) -> None:
    """Ready says little of one that can't open its last port."""
    _end(launcher.server)
    launcher.look()
    for _ in range(MAX_FAILED_STARTS - 1):
        _end(launcher.server)
        launcher.look()
    _end(launcher.server)
    with pytest.raises(GiveUpError, match="ended at once"):
        launcher.look()
    assert launcher.server.num_starts == MAX_FAILED_STARTS


def test_one_that_serves_for_a_while_between_is_not(launcher: Launcher, now: list[float]) -> None:
    for _ in range(3 * MAX_FAILED_STARTS):
        now[0] += LIVES_S
        _end(launcher.server)
        launcher.look()
    assert launcher.server.num_starts == 3 * MAX_FAILED_STARTS


def test_a_start_lasts_no_longer_than_the_setting_says_also_where_each_look_is_slow(
    launcher: Launcher, now: list[float]
) -> None:
    def slow() -> bool:
        now[0] += 9.0
        return False

    with pytest.raises(GiveUpError, match=r"tritonserver was not ready within 60 s \(server.ready_s\)"):
        launcher._await(slow, "tritonserver", lambda: None)
    assert now[0] < 1000 + 60 + 10


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[str]]:
    """Lets the scheduler model answer, and returns what it is asked."""

    def play(answer: Answer) -> list[str]:
        orders: list[str] = []

        def ask(_: object, order: Order, longest_s: float) -> dict[str, int]:
            orders.append(order.what)
            return answer(longest_s)

        monkeypatch.setattr(supervisor, "ask", ask)
        return orders

    return play


def test_a_drain_ends_when_no_request_is_open(
    launcher: Launcher, asked: Callable[[Answer], list[str]], now: list[float]
) -> None:
    left = [3, 1, 0]
    orders = asked(lambda _: {"open": left.pop(0)})
    launcher._drain()
    assert orders == ["status"] * 3
    assert now[0] < 1000 + 2


def test_a_drain_lasts_no_longer_than_the_setting_says_also_where_the_server_is_silent(
    launcher: Launcher, asked: Callable[[Answer], list[str]], now: list[float]
) -> None:
    def silent(longest_s: float) -> NoReturn:
        now[0] += min(longest_s, 5.0)
        raise TimeoutError

    orders = asked(silent)
    launcher.signal()
    launcher._drain()
    assert orders[-1] == "close"
    assert now[0] < 1000 + 30 + 5


def test_a_second_signal_ends_a_drain(
    launcher: Launcher, asked: Callable[[Answer], list[str]], now: list[float]
) -> None:
    def signalled(_: float) -> dict[str, int]:
        launcher.signal()
        return {"open": 1}

    orders = asked(signalled)
    launcher.signal()
    launcher._drain()
    assert orders == ["status", "close"]
    assert now[0] < 1000 + 10


def test_a_drain_without_looks_counts_as_one_with_open_requests(
    launcher: Launcher, asked: Callable[[Answer], list[str]]
) -> None:
    """It has no time for one, so clients get an error."""
    launcher._settings = Settings(server=ServerSettings(drain_s=0.0))
    orders = asked(lambda _: {})
    launcher._drain()
    assert orders == ["close"]


@pytest.mark.parametrize("error", [ConnectionRefusedError, FileNotFoundError])
def test_a_server_without_streams_has_no_open_requests(
    launcher: Launcher, asked: Callable[[Answer], list[str]], error: type[OSError]
) -> None:
    def refuse(_: float) -> NoReturn:
        raise error

    orders = asked(refuse)
    launcher._drain()
    assert orders == ["status"]


def test_signals_that_come_together_are_one(launcher: Launcher, now: list[float]) -> None:
    """`make serve` passes SIGTERM on, and systemd sends it to both."""
    for _ in range(3):
        launcher._count_signal(signal.SIGTERM, None)
        now[0] += 0.1
    assert launcher._signals == 1
    now[0] += 1.0
    launcher._count_signal(signal.SIGINT, None)
    assert launcher._signals == 2
