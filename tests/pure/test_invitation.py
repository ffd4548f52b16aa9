"""What the launcher prints when it is ready can be copied into a terminal."""

from __future__ import annotations

import json
import shlex

import pytest

from python_backends.launcher import invitation as printed
from python_backends.launcher.invitation import invitation
from python_backends.settings import ROOT, ServerSettings


def commands(server: ServerSettings) -> list[list[str]]:
    """The lines to try, as a shell reads them."""
    return [shlex.split(line) for line in invitation(server).splitlines() if line.startswith("  ")]


def test_the_first_command_sends_a_chat_that_is_json() -> None:
    (curl, _, url, _, body), *_ = commands(ServerSettings(http_port=1234))
    assert curl == "curl"
    assert url == "http://127.0.0.1:1234/v2/models/ensemble/generate_stream"
    sent = json.loads(body)
    (turn,) = json.loads(sent["messages"])
    assert turn["role"] == "user"
    assert sent["stream"] is True


def test_the_second_command_is_a_program_of_the_checkout() -> None:
    _, (_, program, option, port, _), _ = commands(ServerSettings(grpc_port=2345))
    assert (ROOT / program).is_file()
    assert (option, port) == ("--port", "2345")


@pytest.mark.parametrize(("port", "words"), [(8001, []), (2345, ["URL=127.0.0.1:2345"])])
def test_a_chat_is_told_of_another_port_only(port: int, words: list[str]) -> None:
    assert commands(ServerSettings(grpc_port=port))[-1] == ["make", "chat", *words]


@pytest.mark.parametrize("address", ["::1", "10.1.2.3"])
def test_commands_name_an_address_that_is_not_the_usual_one(address: str) -> None:
    host = "[::1]" if ":" in address else address
    (_, _, url, *_), stream, chat = commands(ServerSettings(address=address))
    assert url.startswith(f"http://{host}:8000/")
    assert stream[2:4] == ["--host", host]
    assert chat == ["make", "chat", f"URL={host}:8001"]


def test_who_asks_on_this_host_reads_an_address_that_is_one() -> None:
    server = ServerSettings(address="0.0.0.0")
    (_, _, url, *_), stream, chat = commands(server)
    assert url.startswith("http://127.0.0.1:8000/")
    assert "--host" not in stream
    assert chat == ["make", "chat"]
    assert "In a browser: http://127.0.0.1:9000/\n" in invitation(server, 9000)


def test_in_a_container_nothing_is_named_that_only_a_checkout_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed, "IS_CHECKOUT", False)
    ((program, *_),) = commands(ServerSettings(address="0.0.0.0"))
    assert program == "curl"


def test_it_names_the_port_of_openais_interface_if_there_is_one() -> None:
    assert "OpenAI's interface 9000" in invitation(ServerSettings(), 9000)
    assert "OpenAI" not in invitation(ServerSettings(), 0)


def test_it_names_the_page_if_there_is_one() -> None:
    assert "In a browser: http://127.0.0.1:9000/\n" in invitation(ServerSettings(), 9000)
    assert "In a browser: https://[::1]:9000/\n" in invitation(ServerSettings(address="::1"), 9000, True)
    assert "browser" not in invitation(ServerSettings(), 0)
