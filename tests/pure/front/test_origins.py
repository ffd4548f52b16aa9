"""Pages in browsers that ask a server without keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.datastructures import Headers

from front.keys import Keys, read_keys
from front.origins import KeylessPages
from python_backends.settings import ServerSettings
from tests.pure.front.conftest import KEY, MESSAGES
from tests.support.ensemble import ORIGIN, Ensemble, Front
from tests.support.front_wire import ask

CHAT = "/v1/chat/completions"
OWN = "http://127.0.0.1:9000"


def refusal(host: str, origin: str = "", allowed: str = "", **others: str) -> str:
    """Which header is refused; empty: none is."""
    given = {"host": host, **others, **({"origin": origin} if origin else {})}
    problem = KeylessPages(allowed).refusal(Headers(given))
    assert problem is None or (problem.status, problem.code) == (403, "forbidden")
    return "" if problem is None else str(problem).partition(" ")[0]


@pytest.mark.parametrize(
    ("origin", "allowed", "expected"),
    [
        ("", "", ""),  # no browser
        (OWN, "", ""),
        ("https://127.0.0.1:9000", "", ""),  # behind what ends TLS
        ("http://127.0.0.1:3000", "", "Origin"),
        ("https://evil.example", "", "Origin"),
        ("https://evil.example", ORIGIN, "Origin"),
        ("HTTPS://evil.example", "", "Origin"),
        ("null", "", "Origin"),
        (ORIGIN, f"https://a.example, {ORIGIN}", ""),
        ("https://evil.example", "*", ""),
        ("chrome-extension://abc", "", ""),
        ("vscode-webview://abc", "", ""),
    ],
)
def test_pages_of_other_origins_are_refused(origin: str, allowed: str, expected: str) -> None:
    assert refusal("127.0.0.1:9000", origin, allowed) == expected


@pytest.mark.parametrize(
    "host",
    [
        *(
            "",
            "127.0.0.1",
            "127.0.0.1:9000",
            "[::1]:9000",
            "[::1",
            "192.168.1.5:9000",
            "localhost:9000",
            "localhost.",
        ),
        *("Gapless.Localhost:9000", "gapless:9000", "host.docker.internal:9000", "box.local", "a.test"),
        *("gapless.default.svc:9000", "gapless.default.svc.cluster.local:9000", "chat.example.org"),
    ],
)
def test_names_that_are_no_ones_on_the_internet_and_allowed_ones_mean_this_host(host: str) -> None:
    assert refusal(host, allowed=ORIGIN) == ""
    assert refusal(host, f"http://{host}".lower(), allowed=ORIGIN) == ""


@pytest.mark.parametrize("host", ["rebound.example.com:9000", "localhost.example.com", "127.0.0.1.nip.io"])
def test_another_name_is_refused(host: str) -> None:
    assert refusal(host) == refusal(host, f"http://{host}") == "Host"
    assert refusal(host, allowed="*") == ""


def test_a_container_that_listens_on_all_addresses_refuses_it_too(
    ensemble: Ensemble, model: Path, tmp_path: Path
) -> None:
    front = Front(ensemble, model, tmp_path, Keys(()), server=ServerSettings(address="0.0.0.0"))
    try:
        assert ask(front, "/v1/models", host="rebound.example.com:9000")[0] == 403
        assert ask(front, "/v1/models", host="gapless:9000")[0] == 200
    finally:
        front.close()


def test_a_page_behind_a_proxy_that_writes_another_host_is_the_servers_own() -> None:
    named = {"sec-fetch-site": "same-origin"}
    assert refusal("127.0.0.1:9000", "https://chat.example.com", **named) == ""
    assert (
        refusal("127.0.0.1:9000", "https://chat.example.com", **{"sec-fetch-site": "same-site"}) == "Origin"
    )


def test_a_server_without_keys_asks_where_a_page_is_from_and_one_with_keys_for_the_key(
    ensemble: Ensemble, model: Path, tmp_path: Path, front: Front
) -> None:
    body = {"messages": MESSAGES}
    page = {"origin": "https://evil.example", "content_type": "text/plain"}
    status, _, answer = ask(front, CHAT, body, **page)
    assert (status, answer["error"]["code"]) == (403, "forbidden")
    assert "front.allowed_origins" in answer["error"]["message"]
    status, _, answer = ask(front, "/v1/messages", {**body, "max_tokens": 5}, **page)
    assert (status, answer["error"]["type"]) == (403, "permission_error")
    assert not ensemble.asked
    assert (
        ask(front, CHAT, body, host=f"localhost:{front.port}", origin=f"http://localhost:{front.port}")[0]
        == 200
    )
    assert ask(front, CHAT, body, host="rebound.example.com")[0] == 403
    keyed = Front(ensemble, model, tmp_path / "keyed", read_keys(None, KEY))
    try:
        assert ask(keyed, CHAT, body, **page)[0] == 401
        assert ask(keyed, CHAT, body, **page, authorization=f"Bearer {KEY}", host="a.example.com")[0] == 200
    finally:
        keyed.close()
