"""Where the seconds of a start go: the clock of a process, and `gapless bench startup` over a server that is
played.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from commands import __main__ as command
from commands import startup
from commands.called import called
from python_backends.linux.start_clock import StartClock, read_phases, start_clock
from python_backends.settings import ROOT
from tests.support.clock import Clock

INSTANCE = "instance 0: ready after 3.00 s: imports 1.00, reading weights 0.75, first steps 1.25"
LAUNCHER = "gapless: ready after 6.50 s: imports 0.50, an instance 4.00, tritonserver 2.00"
SERVER = f"""
import http.server, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(int(os.environ.get("ANSWER", 200)))
        self.end_headers()
        self.wfile.write(b"said")
    def log_message(self, *_):
        pass
port = dict(word.split("=", 1) for word in sys.argv if "=" in word)["front.port"]
server = http.server.HTTPServer(("127.0.0.1", int(port)), Handler)
print("gapless: loading", sys.argv[1:3], file=sys.stderr)
print({INSTANCE!r}, {LAUNCHER!r}, sep="\\n", file=sys.stderr, flush=True)
server.serve_forever()
"""


@pytest.fixture
def clocks() -> tuple[StartClock, Clock]:
    """A clock of a start, and the one that it reads."""
    clock = Clock(10.0)
    return StartClock(8.0, clock), clock


def test_phases_follow_each_other_and_add_up(clocks: tuple[StartClock, Clock]) -> None:
    started, clock = clocks
    started.ended("imports")
    clock.now_s += 0.5
    started.ended("tokenizer")
    clock.now_s += 0.25
    started.ended("imports")
    assert str(started) == "2.75 s: imports 2.25, tokenizer 0.50"


def test_what_it_takes_to_get_items_is_no_part_of_what_is_done_with_them(
    clocks: tuple[StartClock, Clock],
) -> None:
    started, clock = clocks
    started.ended("imports")

    def layers() -> Iterator[int]:
        for number in range(3):
            clock.now_s += 0.5
            yield number
        clock.now_s += 0.25

    for _ in started.timed("reading weights", layers()):
        clock.now_s += 1.0
    started.ended("packing weights")
    assert read_phases(str(started)) == {"imports": 2.0, "reading weights": 1.75, "packing weights": 3.0}
    assert str(started).startswith("6.75 s: ")


def test_no_item_is_kept_while_the_next_one_is_got(clocks: tuple[StartClock, Clock]) -> None:
    class Item:
        pass

    kept: list[weakref.ref[Item]] = []

    def items() -> Iterator[Item]:
        for _ in range(3):
            assert all(each() is None for each in kept)
            item = Item()
            kept.append(weakref.ref(item))
            yield item
            del item

    timed = clocks[0].timed("reading weights", items())
    for _ in range(3):
        next(timed)
    assert len(kept) == 3


def test_a_process_counts_from_the_moment_at_which_linux_made_it() -> None:
    age_s = time.monotonic() - start_clock._began_s
    assert abs(age_s - (time.time() - psutil.Process().create_time())) < 60


def test_the_phases_of_the_instance_are_in_the_place_where_the_launcher_waited() -> None:
    lines = ["gapless: loading", INSTANCE, "instance 1: ready after 9.00 s: imports 9.00", LAUNCHER]
    phases = startup.phases_of(lines, ready_s=6.75, token_s=0.5)
    assert phases == {
        "imports": 0.5,
        "instance: imports": 1.0,
        "instance: reading weights": 0.75,
        "instance: first steps": 1.25,
        "instance: until it is seen": 1.0,
        "tritonserver": 2.0,
        "first token": 0.5,
        startup.OTHER: 0.25,
    }


def test_the_table_has_medians_and_shares() -> None:
    lines = list(startup.table([{"a": 1.0, "b": 3.0}, {"a": 2.0, "b": 2.0}, {"a": 1.0, "b": 4.0, "c": 1.0}]))
    assert [line.split() for line in lines] == [
        ["phase", "s", "least", "most", "share"],
        ["a", "1.00", "1.00", "2.00", "25%"],
        ["b", "3.00", "2.00", "4.00", "75%"],
        ["c", "0.00", "0.00", "1.00", "0%"],
        ["in", "all", "4.00", "4.00", "6.00", "100%"],
    ]


def test_a_time_that_is_none_has_no_sign() -> None:
    (_, *lines) = startup.table([{"a": 3.0, startup.OTHER: -0.0004}])
    assert [line.split()[-4:] for line in lines] == [
        ["3.00", "3.00", "3.00", "100%"],
        ["0.00", "0.00", "0.00", "0%"],
        ["3.00", "3.00", "3.00", "100%"],
    ]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A server in place of ours."""
    monkeypatch.setattr(startup, "called", lambda: (sys.executable, "-c", SERVER))
    return monkeypatch


def test_it_starts_asks_and_ends_a_server_as_often_as_it_is_told(
    played: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "startup.json"
    words = ["org/name", "--rounds", "2", "--slots", "4", "--json", str(path)]
    played.setattr(sys, "argv", ["gapless", "bench", "startup", *words])
    assert command.main() == 0
    assert "instance: first steps" in capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["command"] == f"gapless bench startup {' '.join(words)}"
    assert report["Python"].startswith(platform.python_version())
    assert "GiB of memory" in report["processor"]
    assert [each["tritonserver"] for each in report["rounds"]] == [2.0, 2.0]
    assert all(each["first token"] > 0 for each in report["rounds"])


def test_the_server_gets_all_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["", "org/name", "--rounds", "2", "--slots", "4", "--set", "a.b=c"])
    asked, words = startup.arguments()
    assert (asked.rounds, words) == (2, ["org/name", "--slots", "4", "--set", "a.b=c"])


@pytest.mark.usefixtures("played")
def test_the_server_is_where_the_first_token_is_asked_for() -> None:
    """Also where the settings name another address."""
    with startup.Server(["--set", "server.address=::1"], "folder") as server:
        server.await_ready()
        words = server._process.args
    assert isinstance(words, list)
    addresses = [word for word in words if word.startswith("server.address=")]
    assert addresses[-1] == "server.address=127.0.0.1"


def test_a_command_that_is_named_works_where_it_was_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in (ROOT, tmp_path):
        monkeypatch.chdir(folder)
        done = subprocess.run([*called(), "--version"], capture_output=True, text=True, check=False)
        assert done.stdout.startswith("gapless "), done.stderr


def test_an_answer_that_is_an_error_is_said(
    played: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played.setenv("ANSWER", "503")
    played.setattr(sys, "argv", ["gapless", "bench", "startup"])
    assert command.main() == 1
    assert capsys.readouterr().err == "bench startup: the first request got status 503: said\n"


def test_a_server_that_does_not_start_is_quoted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; sys.exit('gapless: model.directory: there is none')"
    monkeypatch.setattr(startup, "called", lambda: (sys.executable, "-c", code))
    monkeypatch.setattr(sys, "argv", ["gapless", "bench", "startup"])
    assert command.main() == 1
    said = capsys.readouterr().err
    assert said == "bench startup: the server did not start:\ngapless: model.directory: there is none\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_server_too(played: pytest.MonkeyPatch, number: signal.Signals) -> None:
    servers: list[startup.Server] = []

    def interrupted(server: startup.Server) -> float:
        servers.append(server)
        os.kill(os.getpid(), number)
        raise AssertionError("it goes on")

    before = [signal.getsignal(each) for each in startup.ENDING]
    played.setattr(startup.Server, "await_ready", interrupted)
    played.setattr(sys, "argv", ["gapless", "bench", "startup"])
    try:
        assert command.main() == 130
    finally:
        for each, handler in zip(startup.ENDING, before, strict=True):
            signal.signal(each, handler)
    assert servers[0]._process.returncode is not None


@pytest.mark.parametrize("words", [["--api-key", "x"], ["--api-key=x"], ["--ssl-certfile", "cert.pem"]])
def test_what_the_first_token_is_not_asked_with_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", *words])
    with pytest.raises(SystemExit):
        startup.arguments()
    assert f"{words[0].partition('=')[0]}: the server that is started" in capsys.readouterr().err
