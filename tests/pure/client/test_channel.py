"""Proxies of the environment: never asked for a server on this host, and named in errors of others."""

from __future__ import annotations

import grpc
import pytest

from client.channel import CHANNEL_OPTIONS, channel_options, is_local, with_proxy
from client.errors import UnavailableError, from_grpc

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")


class Gone(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection refused"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "127.0.0.1:8001",
            "127.1.2.3:8001",
            "localhost:8001",
            "LOCALHOST:8001",
            "[::1]:8001",
            "0.0.0.0:8001",
        ),
        *("ipv4:127.0.0.1:8001", "ipv6:[::1]:8001", "dns:localhost:8001", "dns:///localhost:8001"),
        *("[::ffff:127.0.0.1]:8001", "unix:/run/x.sock"),
    ],
)
def test_a_server_on_this_host_is_asked_without_a_proxy(url: str) -> None:
    assert is_local(url)
    assert ("grpc.enable_http_proxy", 0) in channel_options(url)


@pytest.mark.parametrize(
    "url", ["10.1.2.3:8001", "gapless:8001", "[2001:db8::5]:8001", "localhost.example.org:8001"]
)
def test_for_another_host_grpc_does_as_usual(url: str) -> None:
    assert not is_local(url)
    assert channel_options(url) == CHANNEL_OPTIONS


@pytest.mark.parametrize("variable", VARIABLES)
def test_an_error_names_the_proxy_without_its_password(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://me:secret@proxy:3128")
    error = from_grpc(Gone(), "gapless:8001")
    assert isinstance(error, UnavailableError)
    assert f"http://proxy:3128 of {variable}" in str(error)
    assert str(from_grpc(Gone(), "127.0.0.1:8001")) == "connection refused"


def test_without_a_proxy_nothing_is_added() -> None:
    assert with_proxy("gone", "gapless:8001") == "gone"
