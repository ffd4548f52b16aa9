"""What an operator relies on of the front: how long to wait and for what, true health, https, several
processes on one port.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server.serving import Gapless, wait_for
from tests.support.server.toy_model import write_toy_model
from tests.support.toy_engine import toy_settings

MESSAGES = [{"role": "user", "content": "go on"}]
LONG = {"messages": MESSAGES, "max_tokens": 1900, "min_tokens": 1900, "stream": True}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With its key in one file, for localhost."""
    made = tmp_path_factory.mktemp("tls") / "both.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(made), "-out", "-"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    made.write_text(made.read_text() + run.stdout)
    return made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[Gapless]:
    """One slot, and three requests at most; https."""
    model = write_toy_model(tmp_path_factory.mktemp("models") / "model")
    with Gapless(
        **{
            **toy_settings(model, step_ms=10),
            **{"engine.slots": 1, "streams.max_open": 3, "streams.dead_after_s": 3},
            "front.tls_certificate": certificate,
        }
    ) as made:
        yield made


class Client:
    def __init__(self, served: Gapless, certificate: Path) -> None:
        self._port = served.front_port
        self._context = ssl.create_default_context(cafile=str(certificate))

    @contextlib.contextmanager
    def asked(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=60, context=self._context)
        method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
        connection.request(method, path, data, headers or {})
        try:
            yield connection.getresponse()
        finally:
            connection.close()

    def json(self, path: str, body: Any = None) -> tuple[int, Any]:
        with self.asked(path, body) as answer:
            return answer.status, json.loads(answer.read())

    def health(self) -> int:
        try:
            return self.json("/health")[0]
        except OSError:
            return 0


@pytest.fixture
def client(served: Gapless, certificate: Path) -> Client:
    made = Client(served, certificate)
    wait_for(lambda: made.health() == 200, 60)
    wait_for(served.is_idle, 60)
    return made


def test_a_request_says_what_it_waits_for_and_a_full_queue_how_long_it_takes(client: Client) -> None:
    with contextlib.ExitStack() as open_requests:
        first = open_requests.enter_context(client.asked(CHAT, LONG, {"x-request-id": "first"}))
        assert first.readline().startswith(b"data: {")

        def state(name: str) -> Any:
            status, said = client.json(f"/v1/requests/{name}")
            return said["choices"][0] if status == 200 else None

        assert (state("first")["waits_for"], state("first")["place"]) == ("", 0)
        for name in ("second", "third"):
            connection = http.client.HTTPSConnection(
                "127.0.0.1", client._port, timeout=60, context=client._context
            )
            open_requests.callback(connection.close)
            connection.request("POST", CHAT, json.dumps(LONG), {"x-request-id": name})
            wait_for(lambda name=name: state(name), 30)
        wait_for(lambda: state("third")["waits_for"] == "slot", 30)  # as soon as a step was planned with it
        assert state("third")["place"] == 2
        assert 1900 <= state("third")["predicted_tokens"] <= 2048
        with client.asked(CHAT, LONG) as fourth:
            assert (fourth.status, fourth.headers["content-type"]) == (429, "application/json")
            # two answers of 1,900 steps of 10 ms go before the last that waits
            assert 15 <= int(fourth.headers["retry-after"]) <= 120
    wait_for(lambda: client.json("/v1/requests/third")[0] == 404, 30)


@pytest.mark.parametrize("process", ["tritonserver", "scheduler", "tokenizer", "detokenizer", "instance"])
def test_health_is_not_200_while_a_process_stands_still(
    served: Gapless, client: Client, process: str
) -> None:
    pids = {"tritonserver": served.server_pid, "instance": served.instance_pid}
    served.kill(pids[process]() if process in pids else served.stub_pid(process), signal.SIGSTOP)
    wait_for(lambda: client.health() != 200, 60)
    if process == "tritonserver":  # it is missed later than the others
        served.kill(served.server_pid(), signal.SIGKILL)
    wait_for(lambda: client.health() == 200, 120)
    assert client.json(CHAT, {"messages": MESSAGES, "max_tokens": 2})[0] == 200


def test_metrics_have_the_names_that_dashboards_know(client: Client) -> None:
    assert client.json(CHAT, {"messages": MESSAGES, "max_tokens": 5})[0] == 200
    with client.asked("/metrics") as answer:
        text = answer.read().decode()
    assert 'vllm:e2e_request_latency_seconds_count{model_name="model"}' in text
    assert 'vllm:num_requests_running{model_name="model"} 0' in text
