"""The commands of `launcher.control`: how they are read, and what they wait for. The server is the scheduler
model's part of them, which looks once in each pause of a command.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.policies import setting_of
from python_backends.launcher import control
from python_backends.launcher.control import arguments
from python_backends.launcher.run_files import SETTINGS
from python_backends.nouns.request import Finish, Request, Sampling
from python_backends.nouns.step import Started, Tokens
from python_backends.watching.cluster_files import ClusterOrders
from tests.pure.triton_models.test_instance_watch import Watch


@pytest.mark.parametrize(
    "given",
    [
        ["--run-directory", "/run/one", "top", "--every", "2"],
        ["top", "--every", "2", "--run-directory", "/run/one"],  # as `make top ARGS=…` gives it
    ],
)
def test_the_run_directory_may_stand_before_the_command_and_after_it(given: list[str]) -> None:
    asked = arguments(given)
    assert (asked.command, asked.every, asked.run_directory) == ("top", 2.0, Path("/run/one"))
    assert arguments(["top"]).run_directory is None


class Server(Watch):
    """With two instances. `happens`: what comes about in the pauses of a command, one after the other."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(directory, instances=2, policy=setting_of("round_robin"))  # type: ignore[arg-type]
        self.get_ready(0, 1)
        self.watch.write_status()
        self.happens: list[Callable[[], object]] = []
        (directory / SETTINGS).write_text(json.dumps({"cluster": {"instances": 2}}))
        monkeypatch.setattr(control.time, "sleep", self.pause)

    def pause(self, _seconds: float) -> None:
        self.look()
        if self.happens:
            self.happens.pop(0)()
        self.table.outbox()
        self.watch.write_status()

    def accept(self, number: int) -> None:
        prompt = np.array([1, 2], np.int32)
        self.table.accept(Request(number, prompt, Sampling(10), arrival_ns=time.monotonic_ns()), None)
        self.table.outbox()

    def end(self, number: int) -> None:
        """The last token of a request comes."""
        one, none = np.array([number]), np.zeros(1, np.int32)
        self.table.started(Started(number, 0, 0))
        self.table.tokens(Tokens(one, none, none, none, np.array([Finish.STOP], np.uint8)))

    def command(self, *given: str, timeout: float = 0.5) -> int:
        return control.main(["--run-directory", str(self.directory), *given, "--timeout", str(timeout)])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(tmp_path, monkeypatch)


def test_an_instance_is_empty_when_no_request_is_there_that_no_heartbeat_has_counted(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.accept(1)
    stream = server.table.find(1)
    assert stream is not None
    there, said = stream.instance, []
    server.happens = [lambda: said.append(1), lambda: said.append(2), lambda: server.end(1)]
    assert server.command("drain", str(there)) == 0
    assert said == [1, 2]
    assert capsys.readouterr().out.startswith(f"instance {there} is empty after ")


def test_a_command_whose_order_another_one_takes_back_says_so(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.accept(1)
    orders = ClusterOrders(server.directory)
    server.happens = [lambda: orders.restore(frozenset({0}))]
    assert server.command("drain", "0") == 1
    assert "another command has restored instance 0 meanwhile" in capsys.readouterr().err
    server.happens = [lambda: orders.scale(2)]
    assert server.command("scale", "1") == 1
    assert "another command has ordered another number of instances" in capsys.readouterr().err


def test_commands_at_the_same_time_each_hear_of_their_own(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other one is carried out in the first pause of each."""
    orders = ClusterOrders(server.directory)
    for other in (
        lambda: orders.move(8, 1),
        lambda: orders.scale(2),
        lambda: orders.drain(frozenset({1}), {0, 1}),
        lambda: orders.restore(frozenset({1})),
    ):
        server.happens = [other]
        assert server.command("move", "7", "1") == 1
        assert capsys.readouterr().err == "control: there is no open request 7\n"
        server.happens = [other]
        assert server.command("restore", "0") == 0
        server.happens = [other]
        assert server.command("scale", "2") == 0


def test_an_instance_is_not_drained_while_the_only_other_one_is_to_end(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.accept(1)
    server.accept(2)
    ClusterOrders(server.directory).scale(1)
    server.pause(0.0)
    server.pause(0.0)
    [stays] = {0, 1} - server.watch._cluster._scaling.leaving  # type: ignore[union-attr]
    assert server.command("drain", str(stays)) == 1
    assert f"instance {stays} is the last one that gets requests" in capsys.readouterr().err


def test_a_command_says_what_is_missing_when_its_time_is_over(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.accept(1)
    server.pause(0.0)
    server.happens = [lambda: None]
    assert server.command("drain", "0", timeout=0.0) == 1
    assert "the server has not read the order after 0 s; the order stays" in capsys.readouterr().err
    server.pause(0.0)
    assert server.command("drain", "0", timeout=0.05) == 1
    assert "1 requests are still in instance 0 after 0 s; the order stays" in capsys.readouterr().err
