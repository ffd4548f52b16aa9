"""What the script of the page shows, run by node without a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from front.live.page import FILE, INLINE
from front.live.snapshot import Snapshots
from front.responses import END, event
from tests.support.status import NOWHERE, instance, request, status, waiting


def node() -> str | None:
    """One that has what browsers have for requests, which is version 18 or later."""
    found = shutil.which("node")
    if found is None:
        return None
    has = subprocess.run([found, "-p", "typeof Response"], capture_output=True, text=True, check=False).stdout
    return found if has.strip() == "function" else None


NODE = node()
DOM = Path(__file__).parents[2] / "support/page_dom.js"
TEXT = FILE.read_text()
SCRIPT = dict(INLINE.findall(TEXT))["script"]
IDS = {name: tag for tag, name in re.findall(r'<(\w+)[^>]* id="([\w-]+)"', TEXT)}
MODELS = [json.dumps({"data": [{"id": "toy"}]})]

pytestmark = pytest.mark.skipif(NODE is None, reason="node 18 or later is not installed")


def shown(*statuses: dict[str, Any], demo: bool = False, **given: Any) -> Any:
    """What the page shows after these statuses, of which each has its snapshot."""
    made = Snapshots(demo)
    glances = [event(made.next(each, {})).decode() for each in statuses]
    given["late"] = [event(made.next(each, {})).decode() for each in given.get("late", [])] or None
    num_events = len(json.loads(glances[-1].removeprefix("data: "))["events"])
    answers = {"/glance/kill": ["{}"], "/glance": glances, "/v1/models": MODELS, **given.pop("answers", {})}
    asked = {"script": SCRIPT, "ids": IDS, "answers": answers, "num_events": num_events, **given}
    assert NODE is not None
    command = [NODE, str(DOM)]
    ended = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def chunk(**changes: Any) -> str:
    return event({"choices": [{"delta": changes, "finish_reason": None}], "usage": None}).decode()


CHAT = [
    chunk(role="assistant", content=""),
    chunk(content="<b>Pa"),
    chunk(content="ris</b>"),
    event({"choices": [{"delta": {}, "finish_reason": "length"}], "usage": None}).decode(),
    event({"choices": [], "usage": {"prompt_tokens": 14, "completion_tokens": 2}}).decode(),
    END.decode(),
]


def test_rows_show_how_far_answers_are_and_fans_where_they_end() -> None:
    page = shown(status(request(1), request(2, phase="prompt", tokens=0, predicted_range=None, priority=5)))
    assert page["texts"]["model"] == "toy"
    first, second, *others = page["rows"]
    assert (first["name"].split()[:2], first["text"]) == (["row", "decode"], "20 of ~60 (40–90)")
    assert second["text"] == "reads 14 tokens · priority 5"
    assert [each["text"] for each in others] == ["free", "free"]
    lane = {
        name: {side: float(value[:-1]) for side, value in style.items()}
        for name, style in first["lane"].items()
    }
    assert lane["fill"]["width"] == pytest.approx(100 * 20 / 96)
    assert lane["fan"]["left"] == lane["fill"]["width"]
    assert lane["fan"]["left"] + lane["fan"]["width"] == pytest.approx(100 * 90 / 96)
    assert lane["range"]["left"] == pytest.approx(100 * (40 - 20) / (90 - 20)), "of the fan"
    assert lane["mean"]["left"] == pytest.approx(100 * 60 / 96)


def test_the_seventeenth_of_seventeen_reads_why_it_waits() -> None:
    running = [request(number) for number in range(16)]
    page = shown(status(*running, waiting(17), instances=[instance(slots=16, slots_busy=16)]))
    assert page["waiting"] == ["1all slots are taken~60 tokens · 1.5 s"]
    assert page["texts"]["waiting-title"] == "Waiting: 1; the last of them begins in about 2.5 s"
    assert len(page["rows"]) == 16
    assert page["texts"]["slots"] == "16 / 16"


def test_long_waits_are_told_in_minutes_and_seconds() -> None:
    page = shown(status(waiting(1, 1, age_s=89.9), waiting(2, 2, age_s=119.7), waiting(3, 3, age_s=3605)))
    assert [line.rpartition(" · ")[2] for line in page["waiting"]] == ["89.9 s", "2 min 0 s", "60 min 5 s"]


def test_a_request_that_snapshots_do_not_list_says_what_it_waits_for_and_is_seldom_asked_for() -> None:
    others = status(*(waiting(number, number + 1) for number in range(50)))
    own = json.dumps({"choices": [{"request": 60, "waits_for": "slot", "place": 61}]})
    answers = {"/v1/chat/completions": CHAT, "/v1/requests/": [own]}
    page = shown(others, late=[others] * 20, message="Capital?", answers=answers)
    assert page["note"] == "waits: all slots are taken · place 61"
    assert sum(each["path"].startswith("/v1/requests/") for each in page["asked"]) == 1
    assert page["turns"][1][1:3] == ["<b>Paris</b>", ""]


def test_a_crash_is_seen_and_the_answer_in_its_row_again() -> None:
    orphan = waiting(2, 1, "no_instance", instance=NOWHERE, life=1, tokens=20)
    dead = status(orphan, instances=[instance(state="lost", slots=0)])
    page = shown(status(request(1), request(2)), dead, status(request(2, life=1, tokens=33)))
    assert [row["text"] for row in page["rows"]] == ["free", "33 of ~60 (40–90) · went on", "free", "free"]
    lines = page["texts"]["events"]
    assert (
        lines.index("one answer goes on")
        < lines.index("instance 0 is ready")
        < lines.index("instance 0 is lost")
    )
    assert page["texts"]["state"] == "ready"


def test_an_answer_is_text_with_its_tokens_below() -> None:
    page = shown(status(), message="Capital?", answers={"/v1/chat/completions": CHAT})
    question, answer = page["turns"]
    assert question[:2] == ["You", "Capital?"]
    assert answer[:2] == ["Answer", "<b>Paris</b>"]
    assert re.search(r"14 tokens of prompt · 2 tokens · longest pause .* · cut at its limit$", answer[-1])
    [asked] = [each for each in page["asked"] if each["path"] == "/v1/chat/completions"]
    assert asked["body"]["messages"] == [{"role": "user", "content": "Capital?"}]
    assert asked["headers"]["x-request-id"].startswith("page-")
    assert page["texts"]["said"] == "<b>Paris</b>"
    assert "Capital?" in page["texts"]["curl"]


def test_an_answer_that_fails_says_why() -> None:
    error = event({"error": {"message": "the engine failed"}}).decode()
    for parts, said in (
        ([CHAT[1], error], "the engine failed"),
        (CHAT[:2], "the connection ended before the answer did"),
    ):
        page = shown(status(), message="Capital?", answers={"/v1/chat/completions": parts})
        assert page["turns"][1][1:3] == ["<b>Pa", said]
        assert page["texts"]["said"] == said


@pytest.mark.parametrize(
    ("steps", "jobs", "said"),
    [
        (0, {"succeeded": 1}, None),
        (0, {"running": 1}, "no step yet"),
        (7, {"running": 1, "succeeded": 1}, "step 7 · loss 2.50"),
    ],
)
def test_training_is_shown_while_a_job_is_trained(steps: int, jobs: dict[str, int], said: str | None) -> None:
    training = {"steps": steps, "tokens": 64 * steps, "loss": 2.5 if steps else 0.0, "jobs": jobs}
    page = shown(status(training=training))
    assert ("training-box" in page["hidden"]) == (said is None)
    assert said in (None, page["texts"]["training"])


def test_the_page_asks_for_a_key_and_sends_it_with_all_that_it_asks() -> None:
    page = shown(status(request(1)), key="sk-1", message="?", answers={"/v1/chat/completions": CHAT})
    assert page["turns"][1][1] == "<b>Paris</b>"
    assert page["key"] == "", "the field is empty again"
    assert page["asked"][0]["headers"].keys() == set()
    assert all(each["headers"]["authorization"] == "Bearer sk-1" for each in page["asked"][1:])
    assert "sk-1" not in page["texts"]["curl"]


def test_a_key_that_comes_late_brings_the_live_half_too_and_a_wrong_one_is_named() -> None:
    answers = {"/v1/chat/completions": CHAT}
    typed = ["", "sk-2", "sk-1"]
    page = shown(status(request(1)), key="sk-1", typed=typed, message="?", answers=answers)
    asks = "This server asks for a key"
    assert page["titles"] == [asks, asks, "This key was refused"]
    assert page["texts"]["state"] == "ready"
    assert page["rows"][0]["text"] == "20 of ~60 (40–90)"
    assert page["turns"][1][1] == "<b>Paris</b>"


def test_a_key_can_be_given_to_a_server_that_asks_for_none() -> None:
    assert shown(status(), rekey=True, typed=["sk-1"])["titles"] == ["The key that this page sends"]


def test_the_button_is_there_in_a_demo_alone() -> None:
    assert shown(status())["kills"] == [True]
    page = shown(status(), demo=True, kills=True, message="?", answers={"/v1/chat/completions": CHAT})
    assert page["kills"] == [False]
    assert {"instance": 0} in [each["body"] for each in page["asked"] if each["path"] == "/glance/kill"]
