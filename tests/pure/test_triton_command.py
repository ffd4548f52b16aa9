"""How tritonserver is started: stacks for JSON that is nested deep, and connections that survive a pause."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path

import pytest

from client.channel import CHANNEL_OPTIONS
from python_backends.launcher import triton_command
from python_backends.launcher.triton_command import STACK_BYTES, command, environment, stack_bytes
from python_backends.launcher.triton_files import TritonFiles, locate
from python_backends.linux.process_group import end_group, start_group
from python_backends.settings import ROOT, ServerSettings
from python_backends.watching.board import Board

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


def grpc_ms(name: str, run_directory: Path) -> int:
    """A time that tritonserver is given."""
    files = TritonFiles(Path("/b"), Path("/c"), ())
    options = command(ServerSettings(), files, run_directory, (), ("key", "value"))
    (found,) = [int(option.partition("=")[2]) for option in options if option.startswith(f"--grpc-{name}=")]
    return found


def test_connections_outlive_a_pause_of_fifteen_seconds_at_either_end(tmp_path: Path) -> None:
    assert grpc_ms("keepalive-timeout", tmp_path) > 15_000
    assert dict(CHANNEL_OPTIONS)["grpc.keepalive_timeout_ms"] > 15_000


def test_a_client_that_waits_pings_no_more_often_than_the_server_allows(tmp_path: Path) -> None:
    allowed_ms = grpc_ms("http2-min-recv-ping-interval-without-data", tmp_path)
    assert dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] > 2 * allowed_ms


@pytest.mark.parametrize(
    "variable", ["AIP_MODE", "AIP_HTTP_PORT", "SAGEMAKER_BIND_TO_PORT", "SAGEMAKER_TRITON_X"]
)
def test_variables_of_other_platforms_change_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.setenv(variable, "PREDICTION")
    files = TritonFiles(Path("/b"), Path("/c"), ())
    assert variable not in environment(files, Board())
    options = command(ServerSettings(), files, tmp_path, (), ("key", "value"))
    assert {"--allow-vertex-ai=false", "--allow-sagemaker=false"} <= set(options)


@pytest.mark.parametrize(
    ("variable", "given", "expected"),
    [
        ("NO_PROXY", "", "localhost,127.0.0.1,::1"),
        ("NO_PROXY", "a.example", "a.example,localhost,127.0.0.1,::1"),
        ("no_proxy", "b.example", "b.example,localhost,127.0.0.1,::1"),
        ("NO_PROXY", "*", "*"),
    ],
)
def test_a_collector_of_traces_on_this_host_is_asked_through_no_proxy(
    monkeypatch: pytest.MonkeyPatch, variable: str, given: str, expected: str
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, given)
    variables = environment(TritonFiles(Path("/b"), Path("/c"), ()), Board())
    assert variables["no_proxy"] == expected


def test_triton_gets_no_path_that_a_shell_or_a_list_of_directories_could_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a b;$HOME:'c"
    place.mkdir()
    (tmp_path / "seven.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    files = locate(place, ROOT / "model_repository")
    _, *options = command(ServerSettings(), files, place, (), ("key", "value"))
    variables = environment(files, Board())
    ours = [
        *options,
        *(variables[name] for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "GAPLESS_RUN_DIRECTORY")),
    ]
    assert not [word for word in ours if str(place) in word or str(ROOT) in word]
    assert (place / "models/ensemble/config.pbtxt").is_file()
    assert (place / "python_backends/launcher").is_dir()
    locate(place, ROOT / "model_repository", {"tests", "seven"})  # again, as before each start
    assert (place / "tests/support").is_dir(), "the models import what the settings name from here"
    assert (place / "seven.py").is_file()


def test_all_ports_get_the_same_address_and_grpc_no_ipv6_beside_ipv4(tmp_path: Path) -> None:
    files = TritonFiles(Path("/b"), Path("/c"), ())

    def options(address: str) -> list[str]:
        return command(ServerSettings(address=address), files, tmp_path, (), ("key", "value"))

    assert {"--http-address=ipv6:::1", "--grpc-address=[::1]", "--metrics-address=ipv6:::1"} < set(
        options("::1")
    )
    assert options("0.0.0.0")[1:3] == ["-m", "python_backends.linux.ipv4_only"]
    assert options("localhost")[0] == "/b"
