"""Traces as a collector receives them: Triton's spans and ours, in one trace for each request."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.server.serving import Gapless, wait_for
from tests.support.toy_engine import toy_settings

TRACE = "80e1afed08e019fc1110464cfa66635c"
CALLER = "7a085853722dc6d2"


@dataclass(frozen=True)
class Span:
    name: str
    trace: str
    number: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


class Receiver:
    """OTLP over HTTP, as any collector speaks it: Triton sends JSON,
    OpenTelemetry's Python packages send protobuf.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        receiver = self

        class Door(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                receiver.spans += (
                    _of_json if self.headers["Content-Type"] == "application/json" else _of_protobuf
                )(body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *words: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def of(self, trace: str, name: str) -> list[Span]:
        return [span for span in list(self.spans) if (span.trace, span.name) == (trace, name)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _of_protobuf(body: bytes) -> list[Span]:
    scopes = [
        scope
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
    ]
    return [
        Span(
            span.name,
            *(identity.hex() for identity in (span.trace_id, span.span_id, span.parent_span_id)),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            {
                entry.key: getattr(entry.value, entry.value.WhichOneof("value") or "string_value")
                for entry in span.attributes
            },
        )
        for scope in scopes
        for span in scope.spans
    ]


def _of_json(body: bytes) -> list[Span]:
    scopes = [scope for resource in json.loads(body)["resourceSpans"] for scope in resource["scopeSpans"]]
    return [
        Span(
            span["name"],
            *(span.get(identity, "") for identity in ("traceId", "spanId", "parentSpanId")),
            int(span["startTimeUnixNano"]),
            int(span["endTimeUnixNano"]),
            {entry["key"]: next(iter(entry["value"].values())) for entry in span.get("attributes", [])},
        )
        for scope in scopes
        for span in scope["spans"]
    ]


@pytest.fixture(scope="module")
def traced(toy_model: Path) -> Iterator[tuple[Gapless, Receiver]]:
    receiver = Receiver()
    settings = {
        **toy_settings(toy_model, step_ms=5),
        "server.trace_url": receiver.url,
    }
    with contextlib.closing(receiver), Gapless(**settings) as gapless:
        yield gapless, receiver


def test_our_spans_join_the_trace_of_a_request(traced: tuple[Gapless, Receiver]) -> None:
    gapless, receiver = traced
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    inputs = {"text_input": "def f(x):", "max_tokens": 40, "min_tokens": 40}
    status, _ = gapless.post("/v2/models/ensemble/generate", inputs, headers)
    assert status == 200
    wait_for(
        lambda: (
            receiver.of(TRACE, "decode")
            and receiver.of(TRACE, "detokenize")
            and receiver.of(TRACE, "InferRequest")
        ),
        30,
    )
    (queue,), (prefill,), (decode,) = (receiver.of(TRACE, name) for name in ("queue", "prefill", "decode"))
    assert {queue.parent, prefill.parent, decode.parent} <= {
        span.number for span in receiver.of(TRACE, "scheduler")
    }
    assert {span.parent for span in receiver.of(TRACE, "detokenize")} <= {
        span.number for span in receiver.of(TRACE, "detokenizer")
    }
    assert receiver.of(TRACE, "InferRequest")[0].parent == CALLER
    assert queue.end_ns == prefill.start_ns
    assert prefill.end_ns == decode.start_ns
    assert decode.end_ns - decode.start_ns > 39 * 5_000_000 * 0.8
    assert decode.attributes == {"num_output_tokens": 40, "finish_reason": "length", "life": 0}


def test_a_request_of_the_front_joins_the_trace_of_its_caller(traced: tuple[Gapless, Receiver]) -> None:
    gapless, receiver = traced
    trace = TRACE[::-1]
    body = {"messages": [{"role": "user", "content": "def f(x):"}], "max_tokens": 4}
    headers = {"traceparent": f"00-{trace}-{CALLER}-01"}
    assert gapless.post("/v1/chat/completions", body, headers, gapless.front_port)[0] == 200
    wait_for(lambda: receiver.of(trace, "decode") and receiver.of(trace, "InferRequest"), 30)
    assert receiver.of(trace, "InferRequest")[0].parent == CALLER


def test_every_way_a_request_ends_is_traced_and_the_server_lives_on(traced: tuple[Gapless, Receiver]) -> None:
    """A client that leaves, an instance that dies in the middle, a request
    without a caller's trace, one that is refused.
    """
    gapless, receiver = traced
    server = gapless.server_pid()
    client, leaving = gapless.grpc(), gapless.grpc()
    answer = client.ask(text_input="def g(x):", max_tokens=300, min_tokens=300)
    left = leaving.ask(text_input="def h(x):", max_tokens=2000, min_tokens=2000)
    for stream, open_answer in ((client, answer), (leaving, left)):
        stream.read_until(lambda open_answer=open_answer: open_answer.chunks > 2)
    gapless.kill(gapless.instance_pid())
    client.finish()
    client.close()
    leaving.cancel()
    leaving.close()
    assert gapless.generate(text_input="def", max_tokens=10**9)["status"] == 400
    wait_for(lambda: ended(receiver) >= {("length", 1), ("cancelled", 1)}, 30)
    decodes = [span for span in list(receiver.spans) if span.name == "decode"]
    assert len({span.trace for span in decodes}) == len(decodes)
    assert gapless.server_pid() == server


def ended(receiver: Receiver) -> set[tuple[str, int]]:
    return {
        (s.attributes["finish_reason"], s.attributes["life"])
        for s in list(receiver.spans)
        if s.name == "decode"
    }
