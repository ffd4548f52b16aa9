"""How tritonserver is started: stacks for JSON that is nested deep, and connections that survive a pause."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path

import pytest

from client.wire import CHANNEL_OPTIONS
from python_backends.launcher import triton_command
from python_backends.launcher.triton_command import STACK_BYTES, command, stack_bytes
from python_backends.launcher.triton_files import TritonFiles
from python_backends.linux.process_group import end_group, start_group
from python_backends.settings import ServerSettings

UNLIMITED = resource.RLIM_INFINITY
MIB = 1 << 20


@pytest.mark.parametrize(
    ("limits", "overcommit", "expected"),
    [
        ((8 * MIB, UNLIMITED), 0, STACK_BYTES),
        ((UNLIMITED, UNLIMITED), 0, STACK_BYTES),
        ((2 * STACK_BYTES, UNLIMITED), 0, 2 * STACK_BYTES),
        ((8 * MIB, 64 * MIB), 0, 64 * MIB),
        ((8 * MIB, UNLIMITED), 2, 8 * MIB),
    ],
)
def test_stacks_are_as_large_as_the_host_allows_and_less_is_said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limits: tuple[int, int],
    overcommit: int,
    expected: int,
) -> None:
    monkeypatch.setattr(triton_command.resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(triton_command, "_overcommit", lambda: overcommit)
    monkeypatch.setattr(triton_command.os, "sysconf", lambda _: 1 << 20)  # a tebibyte of memory
    with caplog.at_level(logging.WARNING):
        assert stack_bytes() == expected
    assert ("deeply nested JSON can end it" in caplog.text) == (expected < STACK_BYTES)


def test_a_group_gets_its_stacks_and_its_starter_keeps_its_own() -> None:
    before = resource.getrlimit(resource.RLIMIT_STACK)
    process = start_group(["sleep", "60"], dict(os.environ), stack_bytes=before[0] // 2)
    try:
        assert resource.prlimit(process.pid, resource.RLIMIT_STACK) == (before[0] // 2, before[1])
        assert resource.getrlimit(resource.RLIMIT_STACK) == before
    finally:
        end_group(process, 0)


def test_connections_outlive_a_pause_of_fifteen_seconds_at_either_end(tmp_path: Path) -> None:
    files = TritonFiles(Path("/b"), Path("/c"), ())
    options = command(ServerSettings(), files, tmp_path, (), ("key", "value"))
    (server_ms,) = [int(option.partition("=")[2]) for option in options if "keepalive-timeout" in option]
    assert server_ms > 15_000
    assert dict(CHANNEL_OPTIONS)["grpc.keepalive_timeout_ms"] > 15_000
