"""The chat's conversation and commands, against a client that answers by a script."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from client import Client, FailedError, Piece
from client import chat as chat_tool
from client.chat import Chat


class Scripted:
    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)
        self.asked: list[tuple[list[Any], dict[str, Any]]] = []

    def stream(self, messages: list[Any], **parameters: Any) -> Iterator[Piece]:
        self.asked.append(([(each["role"], each["content"]) for each in messages], parameters))
        for each in next(self._answers):
            if isinstance(each, BaseException):
                raise each
            yield Piece(each, num_output_tokens=1)
        yield Piece("", "stop", num_output_tokens=0)


def chat(*answers: Any) -> tuple[Chat, Scripted]:
    client = Scripted(*answers)
    return Chat(client, {"seed": 3}), client  # type: ignore[arg-type]


def test_a_turn_is_asked_with_all_turns_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    talk, client = chat(["He", "y"], ["Yes"])
    assert talk.take("hello")
    assert talk.take("again?")
    assert client.asked[1][0] == [("user", "hello"), ("assistant", "Hey"), ("user", "again?")]
    assert client.asked[1][1] == {"seed": 3, "return_num_output_tokens": True}
    seen = capsys.readouterr()
    assert seen.out == "Hey\nYes\n"
    assert "2 tokens · " in seen.err
    assert "tokens/s · first token" in seen.err


def test_clear_and_system_begin_anew() -> None:
    talk, client = chat(["a"], ["b"], ["c"])
    for line in ("one", "/clear", "two", "/system be brief", "three"):
        assert talk.take(line)
    assert [asked for asked, _ in client.asked[1:]] == [
        [("user", "two")],
        [("system", "be brief"), ("user", "three")],
    ]


def test_what_was_said_before_a_cancel_stays_and_an_error_takes_its_turn_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    talk, client = chat(["Part", KeyboardInterrupt()], [FailedError("broken")], ["ok"])
    for line in ("one", "two", "three"):
        assert talk.take(line)
    assert client.asked[2][0] == [("user", "one"), ("assistant", "Part"), ("user", "three")]
    seen = capsys.readouterr().err
    assert "cancelled" in seen
    assert "broken" in seen
    assert talk.num_errors == 1


def test_set_changes_parameters_and_refuses_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    talk, client = chat(["a"])
    for line in (
        "/set temperature 0.5",
        '/set stop_words "a b" c',
        "/set seed",
        "/set max_tokens many",
        "/set nothing 3",
        "x",
    ):
        assert talk.take(line)
    assert client.asked[0][1] == {
        "temperature": 0.5,
        "stop_words": ["a b", "c"],
        "return_num_output_tokens": True,
    }
    seen = capsys.readouterr().err
    assert "max_tokens = many: must be int" in seen
    assert "nothing: there is no such parameter" in seen


def test_a_value_that_no_request_can_have_ends_its_turn_and_not_the_chat(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The client refuses it before anything is sent."""
    with Client("127.0.0.1:1") as client:
        talk = Chat(client, {})
        for line in ("/set seed -1", "one", "/set seed", "/set deadline_s 0", "two"):
            assert talk.take(line)
    seen = capsys.readouterr().err
    assert "seed = -1: must be int (UINT64)" in seen
    assert "deadline_s = 0.0: must be a number of seconds above 0" in seen
    assert talk.num_errors == 2


def test_commands_end_the_chat_or_explain_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    talk, client = chat(["a"])
    assert not talk.take("/quit")
    assert talk.take("/help")
    assert talk.take("/dance")
    assert talk.take("")
    assert talk.take("//etc/passwd")
    assert client.asked[0][0] == [("user", "/etc/passwd")]
    assert "/clear" in capsys.readouterr().err


def test_a_chat_without_a_server_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    monkeypatch.setattr(sys, "argv", ["chat", "--url", f"127.0.0.1:{port}"])
    assert chat_tool.main() == 1
    said = capsys.readouterr().err
    assert said.startswith(f"no server is ready at 127.0.0.1:{port}: ")
    assert "Connection refused" in said


@pytest.mark.parametrize("url", ["http://127.0.0.1:8001", "https://host:8001/"])
def test_an_address_is_no_url_of_http(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["chat", "--url", url])
    with pytest.raises(SystemExit):
        chat_tool.main()
    assert f"{url}: must be HOST:PORT without http://" in capsys.readouterr().err


def test_the_chat_ends_quietly_when_who_reads_the_answers_has_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    client = Scripted(["an answer"])
    client.is_ready = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setattr(chat_tool, "Client", lambda _: contextlib.nullcontext(client))
    monkeypatch.setattr(sys, "argv", ["chat"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("a question\n"))
    with os.fdopen(writer, "w") as answers:
        monkeypatch.setattr(sys, "stdout", answers)
        assert chat_tool.main() == 1
    assert "Traceback" not in capfd.readouterr().err
