"""What the front says of requests: their ids, lines in the log, metrics, what they wait for and how long."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from front import health, queue, responses
from front.health import Health
from front.metrics import FrontMetrics
from front.record import Record
from front.shared_metrics import SharedMetrics
from python_backends.launcher.readiness import Readiness, path_of
from python_backends.watching.board import Board
from python_backends.watching.instance_state import InstanceRecord, State
from python_backends.watching.launcher_record import LauncherRecord
from python_backends.wires.control import ControlEnd
from tests.pure.front.conftest import MESSAGES
from tests.support.ensemble import ORIGIN, Ensemble, Front
from tests.support.front_wire import sent
from tests.support.server.serving import wait_for

INSTANCE = {"slots_busy": 3, "blocks": 8, "blocks_used": 2}
WAITS = {"waits_for": "slot", "place": 2, "predicted_tokens": 40, "id": "mine", "tokens": 0}
STATUS = {"queue_wait_s": 6.2, "instances": [INSTANCE], "waiting": {"slot": 2}, "requests": [WAITS]}
CHAT = "/v1/chat/completions"


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[list[Any]]:
    """A scheduler model that says STATUS; the orders that it got."""
    orders: list[Any] = []
    control = ControlEnd(tmp_path, lambda: None)
    ending = threading.Event()

    def answer() -> None:
        while not ending.wait(0.01):
            for each in control.take():
                orders.append(each.order)
                is_named = each.order.client_id in ("", "mine")
                each.say({"done": STATUS if is_named else {**STATUS, "requests": []}})

    thread = threading.Thread(target=answer)
    thread.start()
    yield orders
    ending.set()
    thread.join()
    control.close()


def test_the_id_of_a_request_goes_through_to_triton_and_comes_back(front: Front, ensemble: Ensemble) -> None:
    _, headers, _ = sent(front, CHAT, {"messages": MESSAGES, "n": 2}, x_request_id="mine")
    assert headers["x-request-id"] == headers["request-id"] == "mine"
    assert ensemble.ids == ["mine", "mine"]


def test_a_request_joins_the_trace_of_its_caller(front: Front, ensemble: Ensemble) -> None:
    trace = "00-80e1afed08e019fc1110464cfa66635c-7a085853722dc6d2-01"
    for each in (trace, "", f"{trace}-é"):
        sent(front, CHAT, {"messages": MESSAGES}, traceparent=each)
    assert ensemble.traces == [trace, None, None]


def test_each_request_has_one_line_of_json_without_its_text(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "gapless.requests"):
        for body in ({"messages": MESSAGES}, {"messages": MESSAGES, "stream": True}, {"messages": "?"}):
            sent(front, CHAT, body, x_request_id="mine")
        sent(front, "/health")
        while len(caplog.messages) < 3:
            time.sleep(0.01)
    whole, stream, bad = map(json.loads, caplog.messages)
    for line in (whole, stream):
        assert (line["request_id"], line["route"], line["status"]) == ("mine", CHAT, 200)
        assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (14, 8, 5)
        assert line["finish"] == ["stop"]
        assert 0 <= line["first_token_s"] <= line["seconds"]
        assert "left" not in line
    assert bad["status"] == 400
    assert "Convert" not in caplog.text
    assert "readAll" not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_of_a_request_counts_once(
    front: Front, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    body = {"model": "toy", "prompt": ["a", "a", "b"], "n": 2, "stream": stream}
    with caplog.at_level(logging.INFO, "gapless.requests"):
        sent(front, "/v1/completions", body)
        while not caplog.messages:
            time.sleep(0.01)
    line = json.loads(caplog.messages[0])
    assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (42, 24, 30)
    assert line["finish"] == ["stop"] * 6
    _, numbers = read(sent(front, "/metrics")[2])
    assert numbers['gapless_front_prompt_tokens_total{model_name="toy"}'] == 42


def test_a_full_queue_says_when_it_is_expected_to_be_drained(
    front: Front, ensemble: Ensemble, scheduler: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "KEPT_S", 60.0)
    ensemble.error = "too many open requests: 2 are open [queue_full]"
    for path, extra in ((CHAT, {}), ("/v1/messages", {"max_tokens": 5, "model": "toy"})):
        status, headers, _ = sent(front, path, {"messages": MESSAGES, **extra})
        assert (status, headers["retry-after"]) == (429, "7")
    assert len(scheduler) == 1, "the answer is kept for a while"


def test_without_a_scheduler_model_the_queue_is_said_to_take_a_second(
    front: Front, ensemble: Ensemble
) -> None:
    ensemble.error = "too many open requests: 2 are open [queue_full]"
    assert sent(front, CHAT, {"messages": MESSAGES})[1]["retry-after"] == "1"
    assert sent(front, "/v1/requests/mine")[0] == 503


@pytest.mark.usefixtures("scheduler")
def test_a_request_that_waits_says_for_what(
    front: Front, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, body = sent(front, "/v1/requests/mine")
    assert (status, json.loads(body)["choices"]) == (200, [WAITS])
    assert sent(front, "/v1/requests/another")[0] == 404
    monkeypatch.setattr(responses, "SIGN_EVERY_S", 0.1)
    ensemble.pause_s = 0.5
    headers = sent(front, CHAT, {"messages": MESSAGES, "stream": True}, x_request_id="mine")[1]
    assert headers["x-gapless-waits-for"] == "slot; place=2; predicted_tokens=40"
    ensemble.pause_s = 0.0
    assert "x-gapless-waits-for" not in sent(front, CHAT, {"messages": MESSAGES, "stream": True})[1]


def test_silent_streams_are_answered_from_one_status(
    front: Front, ensemble: Ensemble, scheduler: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "KEPT_S", 60.0)
    monkeypatch.setattr(responses, "SIGN_EVERY_S", 0.1)
    ensemble.pause_s = 0.5
    for _ in range(2):
        headers = sent(front, CHAT, {"messages": MESSAGES, "stream": True}, x_request_id="mine")[1]
        assert headers["x-gapless-waits-for"] == "slot; place=2; predicted_tokens=40"
    assert [order.client_id for order in scheduler] == [""]


def test_a_piece_that_comes_while_the_head_asks_what_the_request_waits_for_is_not_lost(
    front: Front, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waits_for(asked: queue.Queue, client_id: str) -> str:
        await asyncio.sleep(0.6)
        return "slot; place=2; predicted_tokens=40"

    whole = sent(front, CHAT, {"messages": MESSAGES, "stream": True})[2]
    monkeypatch.setattr(queue.Queue, "waits_for", waits_for)
    monkeypatch.setattr(responses, "SIGN_EVERY_S", 0.1)
    ensemble.pause_s = 0.3
    status, headers, stream = sent(front, CHAT, {"messages": MESSAGES, "stream": True})
    assert (status, headers["x-gapless-waits-for"]) == (200, "slot; place=2; predicted_tokens=40")
    assert stream.startswith(": still here")
    assert stream.count("data: ") == whole.count("data: ")
    assert stream.endswith("data: [DONE]\n\n")


@pytest.mark.usefixtures("scheduler")
def test_metrics_are_prometheus_histograms_also_under_vllms_names(front: Front) -> None:
    sent(front, CHAT, {"messages": MESSAGES, "stream": True})
    sent(front, "/no/such/path")
    status, headers, body = sent(front, "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    types, numbers = read(body)
    for name in ("vllm:time_to_first_token_seconds", "gapless_front_request_seconds"):
        assert types[name] == "histogram"
        assert numbers[f'{name}_count{{model_name="toy"}}'] == 1
        assert numbers[f'{name}_bucket{{model_name="toy",le="+Inf"}}'] == 1
    assert types["vllm:generation_tokens_total"] == "counter"
    assert numbers['vllm:generation_tokens_total{model_name="toy"}'] == 5
    assert numbers['vllm:num_requests_running{model_name="toy"}'] == 3
    assert numbers['vllm:num_requests_waiting{model_name="toy"}'] == 2
    assert numbers['vllm:kv_cache_usage_perc{model_name="toy"}'] == 0.25
    assert numbers[f'gapless_front_requests_total{{route="{CHAT}",status="200"}}'] == 1
    assert numbers['gapless_front_requests_total{route="other",status="404"}'] == 1


def read(text: str) -> tuple[dict[str, str], dict[str, float]]:
    """The types of metrics by name, and the numbers by name and labels. A number has a type before it."""
    types: dict[str, str] = {}
    numbers: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types
            types[name] = kind
        elif not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            assert re.sub(r"(_bucket|_sum|_count)?\{.*", "", name) in types
            numbers[name] = float(value)
    return types, numbers


def test_several_processes_have_one_page_of_metrics() -> None:
    board = Board()
    made = []
    for number in range(2):
        metrics = FrontMetrics()
        record = Record(route="/", status=200, prompts={0: (3, 0)}, finish_reasons=["stop"])
        metrics.ended(record, 1.0 + number)
        made.append(SharedMetrics(metrics, board, number, 2))
        made[-1].beat()
    for each in made:
        numbers = each.of_all()
        assert numbers.tokens["prompt"] == 6
        assert (numbers.requests, numbers.finished) == ({"200 /": 2}, {"stop": 2})
        assert (sum(numbers.histograms["whole"].counts), numbers.histograms["whole"].sum) == (2, 3.0)
    again = SharedMetrics(FrontMetrics(), board, 1, 2)  # it had ended
    again.beat()
    assert {each.of_all().tokens["prompt"] for each in (made[0], again)} == {6}
    board.close()


def test_pages_of_allowed_origins_may_ask_from_a_browser_and_no_others(front: Front) -> None:
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "authorization"}
    allowed = sent(front, CHAT, method="OPTIONS", origin=ORIGIN, **asked)
    assert (allowed[0], allowed[1]["access-control-allow-origin"]) == (200, ORIGIN)
    other = sent(front, CHAT, method="OPTIONS", origin="https://other.example", **asked)
    assert "access-control-allow-origin" not in other[1]
    assert sent(front, "/v1/models", origin=ORIGIN)[1]["access-control-allow-origin"] == ORIGIN


def test_a_server_that_drains_takes_no_new_request(front: Front, ensemble: Ensemble) -> None:
    LauncherRecord(front.board, ()).drain()
    status, headers, body = sent(front, CHAT, {"messages": MESSAGES})
    assert (status, json.loads(body)["error"]["code"]) == (503, "shutting_down")
    assert re.fullmatch(r"\d+", headers["retry-after"])
    assert not ensemble.asked


@pytest.mark.parametrize("is_stream", [False, True])
def test_answers_of_a_server_that_drains_end_their_connections(
    front: Front, ensemble: Ensemble, is_stream: bool
) -> None:
    """The next request goes to another server behind the same address."""
    body = {"messages": MESSAGES, "stream": is_stream}
    assert "connection" not in sent(front, CHAT, body)[1]
    ensemble.pause_s = 1.0
    with futures.ThreadPoolExecutor() as threads:
        answered = threads.submit(sent, front, CHAT, body)
        wait_for(lambda: len(ensemble.asked) == 2, 30)
        LauncherRecord(front.board, ()).drain()
        status, headers, _ = answered.result()
    assert (status, headers["connection"]) == (200, "close")
    with socket.create_connection(("127.0.0.1", front.port), 30) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        answer.read()
        assert (answer.status, connection.recv(1)) == (503, b"")


# --- health


class Watched:
    """A Health that has looked at everything, by a clock that the test turns."""

    def __init__(self, front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = time.monotonic()
        monkeypatch.setattr(health.time, "monotonic", lambda: self.now_s)
        self.board: Board = front.board
        self.instance = InstanceRecord(self.board, 0)
        self.instance.write(State.READY)
        Readiness(tmp_path, 8000).say(True)
        later_s = time.time() + 600
        os.utime(path_of(tmp_path, 8000), (later_s, later_s))  # the launcher goes on
        self.health = Health(tmp_path, 8000, front.model, None)  # type: ignore[arg-type]

    def live(self, seconds: float, silent: str = "") -> bool:
        for _ in range(int(2 * seconds)):
            self.now_s += 0.5
            for name in health.STUBS:
                if name != silent:
                    self.board.beat(name)
            if silent != "instance":
                self.instance.beat(self.instance.longest_step_s())
            if silent != "triton":
                self.health.answered()
            self.health.look()
        return self.health.is_healthy()


@pytest.mark.parametrize("silent", [*health.STUBS, "instance", "triton"])
def test_health_says_no_within_five_seconds_after_anything_has_stopped(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    watched = Watched(front, tmp_path, monkeypatch)
    assert watched.live(3)
    assert not watched.live(4.5, silent)
    assert watched.live(1)


def test_an_instance_in_a_long_step_is_healthy(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(front, tmp_path, monkeypatch)
    watched.instance.beat(10.0)
    assert watched.live(3)
    assert watched.live(15, "instance")
    assert not watched.live(10, "instance")
