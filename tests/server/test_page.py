"""What the page reads of a real server, and what Chromium shows of it: a row that follows its answer, why a
request waits, a kill by the button, and an answer that goes on.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.chromium import WAIT_MS, chromium
from tests.support.server.serving import BUSY, Gapless, wait_for
from tests.support.server.toy_model import write_toy_model
from tests.support.toy_engine import toy_settings

CHAT = "/v1/chat/completions"
NUM_TOKENS = 1200
LONG = {
    "messages": [{"role": "user", "content": "go on"}],
    "max_tokens": NUM_TOKENS,
    "min_tokens": NUM_TOKENS,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gapless]:
    """One slot; 10 ms a step: an answer takes 12 s or more. An engine is started for as long as several
    snapshots take.
    """
    model = write_toy_model(tmp_path_factory.mktemp("models") / "model")
    slots = {"engine.slots": 1, "streams.dead_after_s": 3, "front.demo": "true"}
    with Gapless(**{**toy_settings(model, step_ms=10, load_s=2), **slots}) as made:
        yield made


def ask(served: Gapless, path: str, body: Any, name: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", served.front_port, timeout=600)
    connection.request("POST", path, json.dumps(body), {"x-request-id": name} if name else {})
    answer = connection.getresponse()
    said = answer.status, json.loads(answer.read())
    connection.close()
    return said


class Watcher:
    """Reads the page's stream, as long as it is open."""

    def __init__(self, served: Gapless) -> None:
        self.shots: list[dict[str, Any]] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", served.front_port, timeout=60)
        self._connection.connect()
        self._socket = self._connection.sock
        self._connection.request("GET", "/glance")
        self._answer = self._connection.getresponse()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._answer.close()
        self._connection.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException, AttributeError):
            for line in self._answer:
                if line.startswith(b"data: "):
                    self.shots.append(json.loads(line[6:]))

    def rows(self) -> list[dict[str, Any]]:
        return [row for shot in self.shots for row in shot["rows"]]

    def events(self) -> list[str]:
        return [event["text"] for event in self.shots[-1]["events"]]


def test_a_killed_engine_is_seen_and_its_answer_goes_on(served: Gapless) -> None:
    wait_for(served.is_idle, 60)
    undisturbed = ask(served, CHAT, LONG)[1]["choices"][0]["message"]["content"]
    with contextlib.closing(Watcher(served)) as watcher, ThreadPoolExecutor(2) as threads:
        first = threads.submit(ask, served, CHAT, LONG)
        wait_for(lambda: len({row["tokens"] for row in watcher.rows()}) >= 5, 30)
        second = threads.submit(ask, served, CHAT, {**LONG, "max_tokens": 1, "min_tokens": 1})
        wait_for(lambda: any(each["waits_for"] == "slot" for each in watcher.shots[-1]["waiting"]), 30)
        assert ask(served, "/glance/kill", {"instance": 0}) == (200, {"killed": 0})
        wait_for(lambda: any(shot["waits"].get("no_instance") == 2 for shot in watcher.shots), 30)
        assert not any(shot["rows"] for shot in watcher.shots if "no_instance" in shot["waits"])
        for _, said in (first.result(), second.result()):
            assert said["choices"][0]["finish_reason"] == "length"
        wait_for(lambda: "instance-0 was started again" in watcher.events(), 60)
    assert first.result()[1]["choices"][0]["message"]["content"] == undisturbed
    assert "one answer goes on in instance 0 from the last token that came" in watcher.events()
    assert {row["life"] for row in watcher.rows()} >= {0, 1}
    assert all(row["row"] == 0 for row in watcher.rows()), "one slot"


def test_in_a_browser_an_answer_goes_on_after_its_engine_was_killed(served: Gapless) -> None:
    """The answer's row is seen to change five times, and the second of two requests reads why it waits."""
    wait_for(served.is_idle, 60)
    undisturbed = ask(served, CHAT, LONG)[1]["choices"][0]["message"]["content"]
    with chromium() as browser, ThreadPoolExecutor(1) as threads:
        page = browser.new_page()
        page.set_default_timeout(BUSY * WAIT_MS)
        # the page has no field for the least number of tokens
        page.route(f"**{CHAT}", lambda route: route.continue_(post_data={**LONG, "stream": True}))
        page.goto(f"http://127.0.0.1:{served.front_port}/")
        page.get_by_label("Message", exact=True).fill("go on")
        page.keyboard.press("Enter")
        says = page.locator(".row.mine .says")
        seen = set[str]()
        wait_for(lambda: seen.add(says.inner_text()) or len(seen) >= 5, 60)
        other = threads.submit(ask, served, CHAT, {**LONG, "max_tokens": 1, "min_tokens": 1})
        page.get_by_text("all slots are taken").first.wait_for()
        page.get_by_role("button", name="Kill the engine").click()
        says.filter(has_text="went on").wait_for()
        page.locator(".turn.answer[aria-busy]").wait_for(state="detached")
        assert page.locator(".turn.answer .text").text_content() == undisturbed
        page.get_by_text("instance-0 was started again").first.wait_for()
        assert other.result()[0] == 200
