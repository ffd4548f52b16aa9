"""Kinds of request behind published weaknesses of Triton and vLLM (SECURITY.md): each gets one answer or an
error, and the server goes on.
"""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from tests.support.server.serving import Gapless

PATH = "/v2/models/ensemble/generate"
BODY = json.dumps({"text_input": "x", "max_tokens": 2}).encode()
SHORT = {"text_input": "x", "max_tokens": 2}


def check_goes_on(gapless: Gapless, server: int) -> None:
    assert gapless.generate(**SHORT)["status"] == 200
    assert gapless.server_pid() == server


def status_of(gapless: Gapless, path: str, headers: dict[str, str], body: bytes = BODY) -> int:
    """0: the connection was closed without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", gapless.http_port, timeout=60)
    try:
        connection.request("POST", path, body, headers)
        return connection.getresponse().status
    except (ConnectionError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


@pytest.mark.parametrize("value", ["99999999999", "-1", "abc", "12abc", "2147483648", "1" + "0" * 30, "0x10"])
@pytest.mark.parametrize("verb", ["generate", "infer"])
def test_an_odd_header_of_triton_ends_nothing(gapless: Gapless, verb: str, value: str) -> None:
    server = gapless.server_pid()
    headers = {"Inference-Header-Content-Length": value}
    assert status_of(gapless, f"/v2/models/ensemble/{verb}", headers) in (200, 400, 501)
    check_goes_on(gapless, server)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, gzip"])
def test_compressed_bodies_are_refused(gapless: Gapless, encoding: str) -> None:
    assert status_of(gapless, PATH, {"Content-Encoding": encoding}, b"\x1f\x8b\x08" + bytes(100)) == 400


def test_a_body_of_many_small_chunks_is_answered(gapless: Gapless) -> None:
    server = gapless.server_pid()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    padded = BODY + b" " * 20_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in padded) + b"0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gapless.http_port), timeout=60) as connection:
        connection.sendall(head + chunks)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    check_goes_on(gapless, server)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "..%2f..%2fetc%2fpasswd",
            "%2fetc%2fpasswd",
            "ensemble/versions/..",
            "ensemble/versions/99999999999999",
        ),
        *("ensemble%00", "models::ensemble", "namesakes::tokenizer", "ensemble/versions/-1"),
    ],
)
def test_a_model_is_no_path(gapless: Gapless, path: str) -> None:
    server = gapless.server_pid()
    status, text = gapless.post(f"/v2/models/{path}/generate", SHORT)
    assert status in (400, 404, 500), text
    assert str(gapless.run_directory) not in text
    check_goes_on(gapless, server)


@pytest.mark.parametrize(
    "path", ["/invocations", "/ping", "/predict", "/v1/endpoints/1/deployedModels/1:predict"]
)
def test_doors_of_other_platforms_do_not_exist(gapless: Gapless, path: str) -> None:
    assert gapless.post(path, SHORT)[0] in (400, 404)


@pytest.mark.parametrize("shape", [[1 << 62, 1], [-1, 1], [1, 1 << 31], [1 << 33, 1 << 33], [0, 0], []])
def test_a_shape_that_overflows_ends_nothing(gapless: Gapless, shape: list[int]) -> None:
    server = gapless.server_pid()
    request = service_pb2.ModelInferRequest(model_name="ensemble")
    request.inputs.add(name="text_input", datatype="BYTES", shape=shape)
    request.raw_input_contents.append(b"\x01\x00\x00\x00x")
    with triton.InferenceServerClient(f"127.0.0.1:{gapless.grpc_port}") as client:
        (answer,) = client._client_stub.ModelStreamInfer(iter([request]), timeout=60)
    assert bool(answer.error_message) != bool(answer.infer_response.raw_output_contents)
    check_goes_on(gapless, server)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"chat_template": "{{ 1 }}"}, "'chat_template'"),
        ({"text_input": ["a"] * 1000}, ""),
        ({"guided_decoding_guide": "("}, "guided_decoding_guide"),
        ({"stop_words": ["x"] * 100_000}, "stop_words"),
        ({"bad_words": ["x"] * 100_000}, "bad_words"),
    ],
)
def test_what_would_multiply_a_request_or_run_text_of_it_is_refused(
    gapless: Gapless, inputs: dict[str, Any], says: str
) -> None:
    answer = gapless.generate(**{**SHORT, **inputs})
    assert answer["status"] >= 400
    assert says in answer["error"]
