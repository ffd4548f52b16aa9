"""What runs out, stands still or gets lost beside open streams: they go on with unchanged text."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.test_recovery import LONG
from tests.support.server.expected import Expected
from tests.support.server.serving import Gapless, wait_for
from tests.support.server.whole_answers import whole_answers
from tests.support.toy_engine import toy_settings

SHM_BYTES = 512 << 20
FEW_FILES = 256
SMALL_SHM = f'mount -t tmpfs -o size={SHM_BYTES} tmpfs /dev/shm && exec "$0" "$@"'
NAMESPACE = ("unshare", "--mount", *(() if os.getuid() == 0 else ("--map-root-user",)), "sh", "-c", SMALL_SHM)


@contextmanager
def filled(directory: Path) -> Iterator[None]:
    """No space is left on its file system."""
    ballast = directory / "ballast"
    try:
        with ballast.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        yield
    finally:
        ballast.unlink(missing_ok=True)


@pytest.fixture
def with_small_shm(toy_model: Path) -> Iterator[Gapless]:
    """A server with a /dev/shm of its own, of SHM_BYTES."""
    with Gapless({}, NAMESPACE, **toy_settings(toy_model, step_ms=5)) as served:
        yield served


def test_a_full_dev_shm_ends_at_most_the_request_that_needs_more_of_it(
    with_small_shm: Gapless, expected: Expected
) -> None:
    gapless = with_small_shm
    shm = Path(f"/proc/{gapless.server_pid()}/root/dev/shm")
    with whole_answers(gapless, expected, 16, **LONG) as client, filled(shm):
        long = "x" * (40 << 20)  # more than the shared memory that each model has from the start
        status, text = gapless.post("/v2/models/ensemble/generate", {"text_input": long, "max_tokens": 5})
        assert status >= 400, text
        assert gapless.generate(text_input="hello", max_tokens=5)["status"] == 200
        client.finish()
    assert gapless.generate(text_input="hello", max_tokens=5)["status"] == 200
    wait_for(gapless.is_idle, 60)


@pytest.fixture
def with_few_files(toy_model: Path) -> Iterator[Gapless]:
    """A server whose processes may have FEW_FILES files open."""
    few = ("sh", "-c", f'ulimit -n {FEW_FILES} && exec "$0" "$@"')
    with Gapless({}, few, **toy_settings(toy_model, step_ms=5)) as served:
        yield served


def test_more_connections_than_fit_are_refused_and_streams_and_log_stay_as_they_are(
    with_few_files: Gapless, expected: Expected
) -> None:
    gapless = with_few_files
    with whole_answers(gapless, expected, 16, **LONG) as client, contextlib.ExitStack() as stack:
        for _ in range(2 * FEW_FILES):
            stack.enter_context(socket.create_connection(("127.0.0.1", gapless.http_port)))
        wait_for(lambda: b"too many open connections" in ask(gapless.http_port), 30)
        client.finish()
    wait_for(lambda: ask(gapless.http_port).startswith(b"HTTP/1.1 200"), 30)
    assert "starting the server again" not in gapless.log
    assert len(gapless.log.splitlines()) < 50


def ask(port: int) -> bytes:
    """The first bytes that come for a question whether the server is ready; empty if none come."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as asking:
        asking.sendall(b"GET /v2/health/ready HTTP/1.1\r\n\r\n")
        return asking.recv(4096)
    return b""


@pytest.mark.parametrize("seconds", [1, 3])
def test_a_tritonserver_that_stands_still_for_a_while_costs_no_stream_its_text(
    gapless: Gapless, expected: Expected, seconds: int
) -> None:
    """Where it stops inside a call of a Python model it may end that call or itself (docs/operations.md,
    "What remains of a pause"): then, and only then, it is tried again.
    """
    for _ in range(3):
        num_said = len(gapless.log)
        try:
            stand_still(gapless, expected, seconds)
            return
        except AssertionError as error:
            said = f"{error}\n{gapless.log[num_said:]}"
            if "is not healthy" not in said and "Signal (11)" not in said:
                raise
            wait_for(lambda: gapless.generate(text_input="hello", max_tokens=5).get("text_output"), 120)
    raise AssertionError("three times it ended a call or itself")


def stand_still(gapless: Gapless, expected: Expected, seconds: int) -> None:
    pid = gapless.server_pid()
    with whole_answers(gapless, expected, 16, **LONG):
        gapless.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        gapless.kill(pid, signal.SIGCONT)
    assert gapless.server_pid() == pid
