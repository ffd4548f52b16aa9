"""The page at `/`: who gets it, what it may do, and what its file has."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from front.keys import read_keys
from front.live.glance import EVERY_S
from front.live.page import FILE, INLINE
from tests.pure.front.conftest import KEY
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import sent

MOST_BYTES = 50_000
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
TEXT = FILE.read_text()


def test_browsers_get_the_page_and_others_the_name_of_the_model(front: Front) -> None:
    status, headers, body = sent(front, "/", **BROWSER)
    assert (status, headers["content-type"], body) == (200, "text/html; charset=utf-8", TEXT)
    assert sent(front, "/", **BROWSER, method="HEAD")[0] == 200
    for accepts in ({}, {"accept": "*/*"}, {"accept": "application/json"}):
        status, headers, body = sent(front, "/", **accepts)
        assert (status, json.loads(body)) == (200, {"model": "toy"})
        assert "accept" in headers["vary"].lower()


def test_the_page_runs_and_draws_by_what_is_in_it_alone(front: Front) -> None:
    headers = sent(front, "/", **BROWSER)[1]
    rules = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    inline = INLINE.findall(TEXT)
    assert [kind for kind, _ in inline] == ["style", "script"]
    for kind, content in inline:
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == rules["form-action"] == rules["frame-ancestors"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert "unsafe" not in str(rules)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_page_needs_no_key_and_what_it_asks_for_does(
    ensemble: Ensemble, model: Path, tmp_path: Path
) -> None:
    front = Front(ensemble, model, tmp_path, read_keys(None, KEY), demo=True)
    try:
        assert sent(front, "/", **BROWSER)[0] == 200
        assert sent(front, "/")[0] == sent(front, "/v1/models", **BROWSER)[0] == 401
        assert sent(front, "/glance", **BROWSER)[0] == 401
        assert sent(front, "/glance/kill", {"instance": 0}, **BROWSER)[0] == 401
    finally:
        front.close()


def test_the_file_is_small_and_brings_nothing_from_elsewhere() -> None:
    assert len(TEXT.encode()) < MOST_BYTES
    elsewhere = re.findall(r"\w+://[^\s'\"]+", TEXT)
    assert set(elsewhere) <= {"http://www.w3.org/2000/svg"}, "the name of a format, which is not asked for"
    assert not re.search(r"\bsrc=|@import|\burl\(|\bimport\b", TEXT)


@pytest.mark.parametrize(
    "way",
    [r"innerHTML", r"outerHTML", r"insertAdjacentHTML", r"\beval\(", r"document\.write", r"\bnew Function"],
)
def test_texts_of_models_never_become_html(way: str) -> None:
    assert not re.search(way, TEXT)


def test_the_key_is_kept_in_memory_alone() -> None:
    assert not re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie|caches\.", TEXT)


class Elements(HTMLParser):
    """All elements with their attributes, and within which labels they stand."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.in_label: list[str] = []
        self._labels = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._labels += tag == "label"
        if self._labels and tag in ("input", "textarea"):
            self.in_label.append(dict(attrs)["id"] or "")

    def handle_endtag(self, tag: str) -> None:
        self._labels -= tag == "label"


@pytest.fixture(scope="module")
def elements() -> Elements:
    made = Elements()
    made.feed(TEXT)
    return made


def test_a_screen_reader_finds_the_language_names_of_all_fields_and_the_parts(elements: Elements) -> None:
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    fields = [attributes["id"] for tag, attributes in elements.found if tag in ("input", "textarea")]
    assert fields == elements.in_label
    for _, attributes in elements.found:
        for name in ("aria-labelledby", "aria-controls"):
            assert attributes.get(name, ids[0]) in ids
    tags = [tag for tag, _ in elements.found]
    assert {"header", "main", "h1", "h2"} <= set(tags)
    assert dict(elements.found)["html"]["lang"] == "en"
    live = [
        attributes["role"] for _, attributes in elements.found if attributes.get("role") in ("log", "status")
    ]
    assert live == ["log", "status"], "what is read aloud by itself"


def test_nothing_is_in_an_attribute_that_the_policy_forbids(elements: Elements) -> None:
    names = {name for _, attributes in elements.found for name in attributes}
    assert not [name for name in names if name.startswith("on") or name == "style"]


def test_a_number_that_the_server_refuses_is_sent_so_that_its_error_is_read(elements: Elements) -> None:
    (form,) = [attributes for _, attributes in elements.found if attributes.get("id") == "ask"]
    assert "novalidate" in form, "a browser would keep it, without a word while the options are closed"


def test_the_page_counts_its_seconds_by_how_often_snapshots_come() -> None:
    assert re.findall(r"EVERY_S = ([\d.]+)", TEXT) == [str(EVERY_S)]


def test_every_element_that_the_script_names_is_there(elements: Elements) -> None:
    ids = {attributes.get("id") for _, attributes in elements.found}
    named = set(re.findall(r'\$\("([\w-]+)"\)', TEXT))
    assert len(named) > 20
    assert named <= ids


def test_the_page_follows_what_its_reader_prefers() -> None:
    for preference in (
        "prefers-color-scheme: dark",
        "prefers-reduced-motion: reduce",
        "forced-colors: active",
    ):
        assert f"@media ({preference})" in TEXT
    assert 'name="viewport" content="width=device-width' in TEXT
