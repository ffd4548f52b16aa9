"""The page in a browser, over a stand-in ensemble and a stand-in scheduler model. Needs the package
playwright (`build/set-up browser`), and Chromium: its own, or that of the system.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from front.keys import Keys, read_keys
from tests.pure.front.conftest import KEY
from tests.pure.front.test_glance import victim
from tests.support.chromium import WAIT_MS, chromium
from tests.support.ensemble import Ensemble, Front
from tests.support.server.serving import wait_for
from tests.support.status import NOWHERE, Scheduler, instance, request, status, waiting

__all__ = ["victim"]  # a fixture


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    made = Scheduler(tmp_path, status(request(1)))
    yield made
    made.close()


class Seen:
    """The page of a front, what it asked for and what its console said."""

    def __init__(self, browser: Any, front: Front, **options: Any) -> None:
        self.page = browser.new_page(**options)
        self.page.set_default_timeout(WAIT_MS)
        self.asked: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda line: self.said.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(front.url)

    def has(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()

    def close(self, front: Front) -> None:
        self.page.close()
        # a request is not known before the scheduler model has it
        said = [line for line in self.said if not line.startswith("Failed to load resource")]
        elsewhere = [url for url in self.asked if not url.startswith((front.url, "data:"))]
        assert (elsewhere, said) == ([], [])


@pytest.fixture
def demo(ensemble: Ensemble, model: Path, tmp_path: Path) -> Iterator[Front]:
    made = Front(ensemble, model, tmp_path, Keys(()), demo=True)
    yield made
    made.close()


def test_a_row_follows_its_answer(browser: Any, front: Front, scheduler: Scheduler) -> None:
    seen = Seen(browser, front)
    for tokens in range(20, 26):
        scheduler.said = status(request(1, tokens=tokens))
        seen.has(f"{tokens} of ~60 (40–90)")
    seen.close(front)


def test_the_seventeenth_of_seventeen_reads_why_it_waits(
    browser: Any, front: Front, scheduler: Scheduler
) -> None:
    running = [request(number) for number in range(16)]
    scheduler.said = status(*running, waiting(17), instances=[instance(slots=16)])
    seen = Seen(browser, front)
    seen.has("all slots are taken")
    assert seen.page.locator(".row:not(.free)").count() == 16
    seen.close(front)


def test_a_prompt_is_answered_and_its_row_is_lit(
    browser: Any, front: Front, ensemble: Ensemble, scheduler: Scheduler
) -> None:
    ensemble.pieces = [*ensemble.pieces[:2], None]
    seen = Seen(browser, front)
    seen.page.get_by_label("Message", exact=True).fill("Convert")
    seen.page.keyboard.press("Enter")
    seen.has("readAll")
    scheduler.said = status(request(1), request(2, id=ensemble.ids[-1]))
    seen.page.locator(".row.mine").wait_for()
    assert "yours" in seen.page.locator(".row.mine").inner_text()
    seen.page.get_by_role("button", name="Stop").click()
    seen.has("stopped")
    assert ensemble.cancelled.wait(60)
    seen.close(front)


@pytest.mark.usefixtures("victim")
def test_an_engine_is_killed_and_its_answer_goes_on(
    browser: Any, demo: Front, scheduler: Scheduler, victim: Any
) -> None:
    scheduler.said = status(request(1), instances=[instance(pid=victim.pid, host=platform.node())])
    seen = Seen(browser, demo)
    seen.page.get_by_role("button", name="Kill the engine").click()
    wait_for(lambda: victim.poll() is not None, 60)
    lost = waiting(1, 1, "no_instance", instance=NOWHERE, life=1, tokens=20)
    scheduler.said = status(lost, instances=[instance(state="lost", slots=0)])
    seen.has("instance 0 is lost")
    scheduler.said = status(request(1, life=1, tokens=34))
    seen.has("34 of ~60 (40–90) · went on")
    seen.has("one answer goes on in instance 0")
    seen.close(demo)


def test_the_key_is_asked_for(
    browser: Any, ensemble: Ensemble, model: Path, tmp_path: Path, scheduler: Scheduler
) -> None:
    front = Front(ensemble, model, tmp_path, read_keys(None, KEY))
    try:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(front.url)
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Use it").click()
        page.get_by_text("20 of ~60").first.wait_for()
        page.close()
    finally:
        front.close()
    assert scheduler.orders


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_page(
    browser: Any, front: Front, scheduler: Scheduler, scheme: str
) -> None:
    scheduler.said = status(request(1, adapter="an-adapter", priority=5, life=2), waiting(2))
    options = {"viewport": {"width": 360, "height": 740}, "color_scheme": scheme, "reduced_motion": "reduce"}
    seen = Seen(browser, front, **options)
    seen.has("all slots are taken")
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ground = seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert ground == {"light": "rgb(251, 250, 248)", "dark": "rgb(20, 20, 19)"}[scheme]
    seen.close(front)


def test_the_page_can_be_used_by_the_keyboard_alone(browser: Any, front: Front, scheduler: Scheduler) -> None:
    seen = Seen(browser, front)
    seen.has("20 of ~60")
    names = []
    for _ in range(12):
        seen.page.keyboard.press("Tab")
        names.append(seen.page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert names[0] == "Skip to the slots"
    assert {"rekey", "messages", "text", "send", "clear", "live"} <= set(names)
    assert scheduler.orders
    seen.close(front)
