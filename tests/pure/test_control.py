"""The control socket: commands, what they wait for, and what they say."""

from __future__ import annotations

import json
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from benchmarks.policies import setting_of
from commands import control
from commands.control import command_parser
from front.live.snapshot import Snapshots
from python_backends.launcher import run_directories
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load, TrainingLoad
from python_backends.nouns.order import Order, RefusedOrderError
from python_backends.nouns.request import Finish, LengthPrediction, Request, Sampling
from python_backends.nouns.step import Started, Tokens
from python_backends.triton_models import orders
from python_backends.triton_models.orders import Orders
from python_backends.watching.board import Board
from python_backends.watching.cluster_state import ClusterState
from python_backends.wires import control as wire
from python_backends.wires.control import ControlEnd, ask
from python_backends.wires.run_directory import CONTROL
from tests.pure.triton_models.test_instance_watch import LIMITS, Watch
from tests.support.server.serving import wait_for
from tests.support.status import instance, request, status


@pytest.mark.parametrize(
    "given",
    [
        ["--run-directory", "/run/one", "top", "--every", "2"],
        ["top", "--every", "2", "--run-directory", "/run/one"],  # as `make top ARGS=…` gives it
    ],
)
def test_the_run_directory_may_stand_before_the_command_and_after_it(given: list[str]) -> None:
    asked = command_parser().parse_args(given)
    assert (asked.command, asked.every, asked.run_directory) == ("top", 2.0, Path("/run/one"))
    assert command_parser().parse_args(["top"]).run_directory is None


REAL_SLEEP = time.sleep


class Server(Watch):
    """With two instances, and a streams thread. `happens`: what comes about while an order is carried out,
    one after the other.
    """

    def __init__(self, directory: Path, board: Board | None = None, instances: int = 2) -> None:
        super().__init__(board, instances=instances, policy=setting_of("round_robin"), move="off")  # type: ignore[arg-type]
        self.directory = directory
        self.control = ControlEnd(directory, lambda: None)
        self.orders = Orders(self.settings, self.table, self.watch, self.metrics)
        self.get_ready(*range(instances))
        self.happens: list[Callable[[], object]] = []
        self._is_ending, self._lock = False, threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_ending:
            with self._lock:
                self._turn()
            REAL_SLEEP(0.001)

    def _turn(self) -> None:
        self.orders.look(self.control)
        self.look()
        self.table.outbox()
        if self.orders._open and self.happens:
            self.happens.pop(0)()

    def end(self) -> None:
        self._is_ending = True
        self._thread.join()
        self.control.close()

    def accept(self, number: int) -> None:
        request = Request(number, np.array([1, 2], np.int32), Sampling(10), arrival_ns=time.monotonic_ns())
        with self._lock:
            self.table.accept(request, None)
            self.table.outbox()

    def start(self, number: int) -> None:
        """It gets a slot."""
        with self._lock:
            self.table.started(Started(number, 0, 0))

    def answer(self, number: int) -> None:
        """The last token of a request comes."""
        one, none = np.array([number]), np.zeros(1, np.int32)
        self.table.tokens(Tokens(one, none, none, none, np.array([Finish.STOP], np.uint8)))

    def command(self, *given: str, timeout: float = 5.0) -> int:
        return control.main(["--run-directory", str(self.directory), *given, "--timeout", str(timeout)])


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(orders, "CHECK_EVERY_S", 0.01)
    with run_directories.held(tmp_path) as made:
        yield made


@pytest.fixture
def server(directory: Path) -> Iterator[Server]:
    made = Server(directory)
    yield made
    made.end()


def test_an_instance_is_empty_when_no_request_is_there_that_no_heartbeat_has_counted(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.accept(1)
    server.start(1)
    stream = server.table.find(1)
    assert stream is not None
    there, said = stream.instance, []
    server.happens = [lambda: said.append(1), lambda: said.append(2), lambda: server.answer(1)]
    assert server.command("drain", str(there)) == 0
    assert said == [1, 2]
    assert capsys.readouterr().out.startswith(f"instance {there} is empty after ")


def test_a_command_whose_order_another_one_takes_back_says_so(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.accept(1)
    server.start(1)
    server.happens = [lambda: server.scaling.restore(0)]
    assert server.command("drain", "0") == 1
    assert "another command has restored instance 0 meanwhile" in capsys.readouterr().err
    server.happens = [lambda: server.scaling.scale(2)]
    assert server.command("scale", "1") == 1
    assert "another command has ordered another number of instances" in capsys.readouterr().err


def test_commands_at_the_same_time_each_hear_of_their_own(server: Server) -> None:
    def refusal(number: int) -> str:
        with pytest.raises(RefusedOrderError) as refused:
            ask(server.directory, Order("move", instance=1, request=number))
        return str(refused.value)

    server.accept(1)
    server.start(1)
    with ThreadPoolExecutor(20) as threads:
        drained = threads.submit(ask, server.directory, Order("drain", instance=0))
        refusals = list(threads.map(refusal, range(100, 110)))
        scaled = threads.submit(ask, server.directory, Order("scale", number=2))
        assert scaled.result().startswith("the number of instances is 2; all are ready after ")
        assert not drained.done()
        server.happens = [lambda: server.answer(1)]
        assert drained.result().startswith("instance 0 is empty after ")
    assert refusals == [f"there is no open request {number}" for number in range(100, 110)]


def test_an_instance_is_not_drained_while_the_only_other_one_is_to_end(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.accept(1)
    server.accept(2)
    server.scaling.scale(1)
    wait_for(lambda: server.scaling.leaving, 10)
    [leaves] = server.scaling.leaving
    assert server.command("drain", str(1 - leaves)) == 1
    assert f"instance {1 - leaves} is the last one that gets requests" in capsys.readouterr().err
    assert server.command("restore", str(leaves)) == 1
    assert f"instance {leaves} is to be empty: it is one too many" in capsys.readouterr().err


def test_a_command_says_what_is_missing_when_its_time_is_over(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.accept(1)
    server.start(1)
    assert server.command("drain", "0", timeout=0.0) == 1
    assert "1 requests are still in instance 0 after" in capsys.readouterr().err
    assert server.scaling.draining == {0}, "the order stays"
    wait_for(lambda: not server.orders._open, 10)


def test_a_number_that_can_not_be_is_refused_with_its_limit(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in ("0", "3"):
        assert server.command("scale", number) == 1
        text = f"scale {number}: must be auto or a number from 1 to 2 (cluster.instances)"
        assert text in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command_parser().parse_args(["scale", "many"])
    assert "many: must be auto or a number" in capsys.readouterr().err


def test_the_status_says_what_waits_and_why(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.accept(1)
    server.accept(2)
    server.start(1)
    said = ask(server.directory, Order("status"))
    assert (said["ready"], said["open"], said["waiting"]) == (True, 2, {"step": 1})
    assert [each["waits_for"] for each in said["requests"]] == ["", "step"]
    assert [each["place"] for each in said["requests"]] == [0, 1]
    assert all(each["predicted_tokens"] > 0 for each in said["requests"])
    assert said["queue_wait_s"] >= 0
    assert ask(server.directory, Order("status", client_id="nobody's"))["requests"] == []
    assert control.main(["--run-directory", str(server.directory), "requests"]) == 0
    assert capsys.readouterr().out.splitlines()[2].endswith("step")


def test_the_status_says_how_far_answers_are_and_between_which_lengths_they_are_expected_to_end(
    server: Server,
) -> None:
    quantiles = np.array([2, 3, 4, 5, 8, 9], np.float32)
    for number in (1, 2, 3):
        server.accept(number)
    server.start(1)
    server.start(2)
    with server._lock:
        one, none = np.array([1]), np.zeros(1, np.int32)
        server.table.tokens(Tokens(one, none, none, none, np.zeros(1, np.uint8)))
        server.table.predicted(1, LengthPrediction(4.4, quantiles))
    first, second, third = ask(server.directory, Order("status"))["requests"]
    assert [each["phase"] for each in (first, second, third)] == ["decode", "prompt", "waits"]
    assert (first["tokens"], first["predicted_tokens"], first["predicted_range"]) == (1, 4, [2, 8])
    assert (second["predicted_range"], second["max_tokens"]) == (None, 10)
    assert first["life"] == 0
    with server._lock:
        server.table.instance_lost(first["instance"])
        server.table.outbox()
    again = ask(server.directory, Order("status"))["requests"][0]
    assert (again["phase"], again["life"], again["tokens"]) == ("waits", 1, 1)


def test_the_status_counts_tokens_gaps_late_tokens_and_training(server: Server) -> None:
    before = ask(server.directory, Order("status"))
    assert (before["generated_tokens"], before["training"]) == (0, None)
    assert len(before["gaps"]["counts"]) == len(before["gaps"]["bounds_s"]) + 1
    server.accept(1)
    server.start(1)
    counts = (1, *[0] * len(before["gaps"]["bounds_s"]))
    training = TrainingLoad(tokens=64, steps=1, loss=2.5, jobs=(1, 1, 0, 0, 0))
    said = Load(num_slots=4, num_blocks=100, gap_counts=counts, late_tokens=(2,), training=training)
    with server._lock:
        server.hear(InstanceLoad(0, LIMITS, said))
        server.answer(1)
    after = ask(server.directory, Order("status"))
    assert after["generated_tokens"] == 1
    assert after["gaps"]["counts"][0] == 1
    assert after["late_tokens"]["decode"] == 2
    jobs = {"queued": 1, "running": 1}
    assert after["training"] == {"steps": 1, "tokens": 64, "loss": 2.5, "jobs": jobs}


def test_the_page_reads_this_status(server: Server) -> None:
    """Statuses of the tests of the front have the fields that the scheduler model's has."""
    for number in (1, 2):
        server.accept(number)
    server.start(1)
    said = ask(server.directory, Order("status"))
    assert said.keys() == status().keys()
    assert said["requests"][0].keys() == request(1).keys()
    assert said["instances"][0].keys() == instance().keys()
    snapshot = Snapshots().next(said, {})
    assert [each["request"] for each in snapshot.rows] == [1]
    assert [each["waits_for"] for each in snapshot.waiting] == ["step"]


def test_one_instance_has_a_status_and_takes_no_order(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(directory, instances=1)
    assert ask(directory, Order("status"))["ready"]
    assert control.main(["--run-directory", str(directory), "status"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert server.command("drain", "0") == 1
    assert "cluster.instances or cluster.max_instances must be above 1" in capsys.readouterr().err
    server.end()


def test_an_order_waits_for_the_next_scheduler_model(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The orders of the last one stay."""
    first = Server(directory)
    first.scaling.drain(1)
    wait_for(lambda: ClusterState.read(first.board).drained, 10)
    first.end()
    made: list[Server] = []
    monkeypatch.setattr(control.time, "sleep", lambda _: made.append(Server(directory, first.board)))
    assert first.command("drain", "0") == 1
    [second] = made
    second.end()
    said = capsys.readouterr().err
    assert "the scheduler model does not answer (Connection refused); asking again" in said
    assert "instance 0 is the last one that gets requests" in said


def test_a_scheduler_model_that_hangs_is_not_waited_for(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SILENT_S", 0.1)
    silent = ControlEnd(directory, lambda: None)
    with pytest.raises(TimeoutError):
        ask(directory, Order("drain", instance=0), 600.0)
    [asked] = silent.take()
    assert not asked.say({"missing": "something"}), "the one who asked has gone"
    silent.close()
    with pytest.raises(ConnectionRefusedError):
        ask(directory, Order("status"))


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "soon"])
def test_a_pause_that_can_not_be_waited_for_is_refused(
    given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        control.main(["top", "--every", given])
    assert f"{given}" in capsys.readouterr().err


def test_only_its_user_may_ask_and_what_is_no_order_is_refused(server: Server) -> None:
    path = server.directory / CONTROL
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for line in (
        b"{",
        b'{"what": "stop"}\n',
        b'{"what": "drain", "instance": "1"}\n',
        b"\xff\n",
        b"x" * 5000,
        b'{"what": "status", "x": ' + b"[" * 4000 + b"\n",
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            assert json.loads(connection.makefile().readline())["refused"].startswith("not an order: ")
    assert ask(server.directory, Order("status"))["ready"]


def test_an_order_whose_bytes_come_one_by_one_has_to_come_in_time_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, waits_s = 0.0, list[float]()

    class Slow:
        settimeout = waits_s.append

        def recv(self, _: int) -> bytes:
            nonlocal now_s
            now_s += 0.25
            return b"x"

    monkeypatch.setattr(wire.time, "monotonic", lambda: now_s)
    with pytest.raises(TimeoutError, match="the order has not come within 1 s"):
        wire._line(Slow())  # type: ignore[arg-type]
    assert waits_s == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize(("command", "code"), [("drain", 130), ("status", 130), ("top", 0)])
def test_who_no_longer_waits_for_an_order_hears_that_it_stays(
    command: str,
    code: int,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(control, "ask", interrupted)
    words = [command, "1"] if command == "drain" else [command]
    assert control.main(["--run-directory", str(directory), *words]) == code
    assert ("the order stays" in capsys.readouterr().err) == (command == "drain")


def test_where_no_server_runs_nothing_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert control.main(["--run-directory", str(tmp_path), "status"]) == 1
    assert capsys.readouterr().err == f"no server of this user runs in {tmp_path}\n"


def test_who_has_no_server_yet_reads_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control.run_directories, "places", lambda: [str(tmp_path), "/nowhere/*"])
    assert control.main(["top"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"no server of this user has its run directory in {tmp_path}, /nowhere/* (")
    assert "--run-directory" in said
    assert said.endswith("start one: make serve\n")
