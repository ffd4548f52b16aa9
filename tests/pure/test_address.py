"""`server.address`: what works, and what is refused by its name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from python_backends.launcher.address import check_key, check_ports, in_url, ip_of, of_triton_http
from python_backends.linux.free_ports import free_ports
from python_backends.settings import ROOT, FrontSettings, ServerSettings, Settings, SettingsError


@pytest.mark.parametrize(
    ("address", "ip"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0"),
        ("::1", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::5", "2001:db8::5"),
    ],
)
def test_ip_addresses_and_localhost_are_taken(address: str, ip: str) -> None:
    assert ip_of(address) == ip


@pytest.mark.parametrize(
    "address",
    ["", " ", "::", "[::1]", "gapless", "127.0.0.1:8000", "::ffff:127.0.0.1", "fe80::1%eth0", "1.2.3"],
)
def test_others_are_refused_by_the_name_of_the_setting(address: str) -> None:
    with pytest.raises(SettingsError, match=r"server\.address = .*: must be "):
        ip_of(address)


def test_each_program_gets_an_ipv6_address_as_it_writes_it() -> None:
    assert (in_url("::1"), of_triton_http("::1")) == ("[::1]", "ipv6:::1")
    assert (in_url("127.0.0.1"), of_triton_http("127.0.0.1")) == ("127.0.0.1", "127.0.0.1")


def test_an_address_that_this_host_does_not_have_is_named_and_not_the_port() -> None:
    with pytest.raises(SettingsError, match=r"server\.address = 192\.0\.2\.1: Cannot assign"):
        check_ports(ServerSettings(address="192.0.2.1"))


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"server\.http_port = {port}: Address already in use"):
            check_ports(ServerSettings(http_port=port))


def test_so_is_that_of_the_front_unless_there_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
        check_ports(ServerSettings(**ports), 0)
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"front\.port = {port}: Address already in use"):
            check_ports(ServerSettings(**ports), port)


def test_equal_ports_are_refused_with_both_names() -> None:
    one, two, three = free_ports(3)
    server = ServerSettings(http_port=one, grpc_port=two, metrics_port=three)
    for port, name in ((one, "http_port"), (two, "grpc_port"), (three, "metrics_port")):
        with pytest.raises(SettingsError, match=rf"server\.{name} and front\.port are both {port}:"):
            check_ports(server, port)
    with pytest.raises(SettingsError, match=r"server\.grpc_port and server\.metrics_port are both"):
        check_ports(ServerSettings(http_port=one, grpc_port=two, metrics_port=two))


def _settings(address: str, **front: Any) -> Settings:
    return Settings(server=ServerSettings(address=address), front=FrontSettings(**front))


@pytest.mark.parametrize("address", ["0.0.0.0", "10.1.2.3", "2001:db8::5"])
def test_an_address_that_others_reach_needs_a_key(address: str) -> None:
    said = rf"server\.address = '{address}': other hosts reach it.* GAPLESS_API_KEY or front\.api_keys"
    for environment in ({}, {"GAPLESS_API_KEY": ""}):
        with pytest.raises(SettingsError, match=said):
            check_key(_settings(address), environment)
    with pytest.raises(SettingsError, match="GAPLESS_API_KEY: must not be blank"):
        check_key(_settings(address), {"GAPLESS_API_KEY": " \n"})
    check_key(_settings(address), {"GAPLESS_API_KEY": "x"})
    for front in ({"api_keys": "keys"}, {"port": 0}, {"without_key": True}):
        check_key(_settings(address, **front), {})


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_an_address_of_this_host_alone_needs_none(address: str) -> None:
    check_key(_settings(address), {})


def test_the_start_says_it_in_one_line_before_anything_is_loaded() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "commands.serve", "--set", "server.address=0.0.0.0"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 1
    assert "front.without_key" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr
