"""Requests of a client that means harm: to any model, any path and the bare socket of a server.

Each kind draws its requests from a random number generator. An attack fires one request and returns what came
back; its verdict says what is wrong with that. `test_hostile` sends hundreds of them beside streams whose
text must not change.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tritonclient.grpc import service_pb2

from benchmarks.hostile_guides import HOSTILE
from tests.support.server import doors, random_requests
from tests.support.server.doors import GrpcDoor, Outcome
from tests.support.server.fuzzing import fire, verdict_of

ANSWERED = "answered"
INNER = {
    "tokenizer": "text_input",
    "scheduler": "request",
    "detokenizer": "token_window",
}
SECRETS = ("Traceback", "python_backends", "site-packages", "/dev/shm")
READ_S = 2.0  # how long a broken connection is read


@dataclass(frozen=True)
class Target:
    """One server, and an attacker's connection to it."""

    http_port: int
    grpc: GrpcDoor


@dataclass(frozen=True)
class Attack:
    kind: str
    fire: Callable[[Target], Outcome]
    verdict: Callable[[Outcome], str]  # what is wrong with what came back; empty if nothing is
    shown: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.shown[:200]}"


Draw = Callable[[random.Random], Attack]


def draw(kind: str, rng: random.Random) -> Attack:
    return KINDS[kind](rng)


# --- verdicts


def shows_no_insides(outcome: Outcome) -> str:
    shown = any(secret in error for error in outcome.errors for secret in SECRETS)
    return "an error shows our insides" if shown else ""


def ends_once(outcome: Outcome) -> str:
    return shows_no_insides(outcome) or ("" if outcome.num_ends == 1 else f"ended {outcome.num_ends} times")


def is_refused(outcome: Outcome) -> str:
    return ends_once(outcome) or ("" if outcome.errors else "was answered")


def ends_once_unless_cut(outcome: Outcome) -> str:
    return shows_no_insides(outcome) if outcome.cut and outcome.num_ends <= 1 else ends_once(outcome)


# --- ways in


def post(port: int, path: str, content: bytes, method: str = "POST", **headers: str) -> Outcome:
    """Any method, any path. A status that is an error counts as one."""
    connection, outcome = doors.http_connection(port), Outcome()
    try:
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        outcome.status = str(response.status)
        said = response.read().decode(errors="replace")
        is_good = response.status == 200 and '"error"' not in said
        (outcome.reasons if is_good else outcome.errors).append(said or outcome.status)
    except (OSError, http.client.HTTPException) as error:
        outcome.errors.append(f"closed: {type(error).__name__}")
    finally:
        connection.close()
    return outcome


def call(target: Target, model: str, tensors: dict[str, tuple[str, list[int], bytes]]) -> Outcome:
    """A stream call of any model over gRPC; outputs of whatever name count as an answer."""
    request = service_pb2.ModelInferRequest(model_name=model, id="1")
    for name, (datatype, shape, content) in tensors.items():
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(content)
    outcome = target.grpc.ask(bytes(request.SerializeToString()))
    if outcome.num_outputs and not outcome.reasons:
        outcome.reasons.append(ANSWERED)
    return outcome


def raw(port: int, content: bytes, reads: bool) -> Outcome:
    """Bytes to the bare socket, which is closed at once or after what comes back within a while."""
    outcome = Outcome(cut=True)
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), READ_S) as connection:
        connection.sendall(content)
        if reads:
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                outcome.text += part.decode(errors="replace")
    return outcome


# --- kinds


def _over_http(kind: str, rng: random.Random, content: bytes, verdict: Callable[[Outcome], str]) -> Attack:
    door = rng.choice(("generate", "generate_stream"))
    return Attack(
        kind, lambda target: doors.post(target.http_port, door, content), verdict, repr(content[:200])
    )


def _drawn(rng: random.Random) -> Attack:
    """Wrong types, ranks, shapes, names, values and bytes, as `make fuzz` draws them."""
    shot = random_requests.bad_shot(rng)
    way = partial(_fire_shot, shot)
    return Attack("drawn", way, partial(verdict_of, shot), str(shot))


def _fire_shot(shot: random_requests.Shot, target: Target) -> Outcome:
    return fire(shot, target.http_port, target.grpc)


def _values(rng: random.Random) -> Attack:
    """Values that a parser or a type cannot hold: NaN, huge numbers, lone surrogates."""
    numbers = (
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "9" * 5000,
        "-0",
        "1e-400",
        '"\\ud800"',
        "true",
        "[]",
        "{}",
        "null",
    )
    number = rng.choice(numbers)
    name = rng.choice([*random_requests.FIELDS, "timeout"])
    given = {} if name == "text_input" else {"text_input": '"x"'}
    fields = {**given, "max_tokens": "4", name: number}
    content = "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items()) + "}"
    return _over_http("values", rng, content.encode(), ends_once)


def _texts(rng: random.Random) -> Attack:
    """Texts that are odd and may well be answered."""
    text = rng.choice(
        [
            *(
                "\ud800",
                "a\udfffb",
                "\\ud800",
                "\0" * 100,
                "\u202e" * 50,
                "\ufeff",
                "\ufffe",
                "e" + "\u0301" * 500,
            ),
            *("<|end|>" * 50, "<|end|><|user|>", "{{ 1 // 0 }}", "{% for %}", "\n" * 1000, "%s%n" * 50),
            *("'; DROP TABLE answers; --", "../../etc/passwd"),
        ]
    )
    chat = [{"role": rng.choice(["user", "tool", "admin", "", "<|end|>"]), "content": text}]
    fields = {"text_input": text} if rng.random() < 0.5 else {"messages": json.dumps(chat)}
    content = json.dumps({**fields, "max_tokens": 4, "stop_words": rng.choice([[], [text[:200]]])}).encode()
    return _over_http("texts", rng, content, ends_once)


def _fields(rng: random.Random) -> Attack:
    """Fields that there are not, of other servers or misspelt."""
    names = (
        "heat",
        "max_new_tokens",
        "n",
        "stop",
        "model",
        "logit_bias",
        "__class__",
        "text_input ",
        "",
    )
    unknown = {name: rng.choice([1, "x", [1], True]) for name in rng.sample(names, 2)}
    content = doors.body(text_input="x", max_tokens=4, **unknown)
    return _over_http("fields", rng, content, is_refused)


def _inner(rng: random.Random) -> Attack:
    """Direct calls of the models that stand behind the door, with anything."""
    model = rng.choice(["scheduler", "detokenizer", "tokenizer"])
    name, content = INNER[model], rng.randbytes(rng.choice([0, 1, 15, 16, 17, 64, 4096]))
    if rng.random() < 0.5:
        body = json.dumps({name: list(content)}).encode()
        path = f"/v2/models/{model}/{rng.choice(['generate', 'generate_stream'])}"
        return Attack(
            "inner",
            lambda target: post(target.http_port, path, body),
            is_refused,
            f"{path} {len(content)} bytes",
        )
    datatype = "UINT8" if model != "tokenizer" else rng.choice(["UINT8", "INT32"])
    tensor = (
        datatype,
        rng.choice([[1, len(content)], [len(content)], [2, len(content)], [1, 1], [1, -1]]),
        content,
    )
    return Attack(
        "inner",
        lambda target: call(target, model, {name: tensor}),
        is_refused,
        f"{model} {tensor[:2]} over gRPC",
    )


def _elsewhere(rng: random.Random) -> Attack:
    """Models, versions, methods and paths that there are not, and doors that are closed."""
    path = rng.choice(
        [
            *(
                "/v2/models/nobody/generate",
                "/v2/models/ensemble/versions/99/generate",
                "/v2/models/ensemble/versions/x/generate",
            ),
            *(
                "/v2/models//generate",
                "/v2/models/..%2f..%2fetc/generate",
                "/v2/models/ensemble/generate/x",
                "/v1/chat/completions",
            ),
            *(
                "/v2/repository/index",
                "/v2/repository/models/tokenizer/unload",
                "/v2/systemsharedmemory/region/x/register",
            ),
            *(
                "/v2/logging",
                "/v2/trace/setting",
                "/v2/models/ensemble/trace/setting",
                "/" + "a" * 4000,
                "/%00",
            ),
        ]
    )
    method = rng.choice(["POST", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
    return Attack(
        "elsewhere",
        lambda target: post(target.http_port, path, b"{}", method),
        is_refused,
        f"{method} {path}",
    )


def _sockets(rng: random.Random) -> Attack:
    """No HTTP, half of it, or one whose parts contradict each other."""
    head = b"POST /v2/models/ensemble/generate HTTP/1.1\r\nHost: x\r\n"
    body = b'{"text_input": "x", "max_tokens": 4}'
    content = rng.choice(
        [
            rng.randbytes(200),
            head,
            head + b"Content-Length: 1000000\r\n\r\n" + body,
            head + b"Content-Length: -1\r\n\r\n" + body,
            head + b"Content-Length: 99999999999999999999\r\n\r\n" + body,
            head + b"Content-Length: 3\r\nContent-Length: 36\r\n\r\n" + body,
            head + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n" + body,
            head + b"Transfer-Encoding: chunked\r\n\r\n24\r\n" + body,
            head + b"Inference-Header-Content-Length: 1000\r\nContent-Length: 36\r\n\r\n" + body,
            head + b"Content-Encoding: gzip\r\nContent-Length: 36\r\n\r\n" + body,
            head + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n" + b"\0" * 100,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(60),
        ]
    )
    reads = rng.random() < 0.5
    way = lambda target: raw(target.http_port, content, reads)  # noqa: E731
    return Attack("sockets", way, ends_once_unless_cut, repr(content))


def _leaving(rng: random.Random) -> Attack:
    """Good requests whose clients leave at some moment."""
    inputs = {"text_input": f"def read_{rng.randrange(100)}(", "max_tokens": 300, "min_tokens": 300}
    after_s = rng.uniform(0, 0.5)
    if rng.random() < 0.5:
        content = doors.message(stream=True, **inputs)
        return Attack(
            "leaving",
            lambda target: target.grpc.ask(content, after_s),
            ends_once_unless_cut,
            f"gRPC after {after_s:.2f} s",
        )
    content = doors.body(stream=True, **inputs)
    way = lambda target: doors.post(target.http_port, "generate_stream", content, after_s)  # noqa: E731
    return Attack("leaving", way, ends_once_unless_cut, f"HTTP after {after_s:.2f} s")


def _guides(rng: random.Random) -> Attack:
    """Guides that mean harm, refused or served, and one of a megabyte."""
    is_large = rng.random() < 0.1
    large = "json_schema", json.dumps({"enum": ["a" * 1_000_000]})
    kind, guide = large if is_large else HOSTILE[rng.choice(list(HOSTILE))]
    fields = {"guided_decoding_guide_type": kind, "guided_decoding_guide": guide}
    content = doors.body(text_input="x", max_tokens=60, temperature=1, seed=rng.randrange(100), **fields)
    return _over_http("guides", rng, content, is_refused if is_large else ends_once)


KINDS: dict[str, Draw] = {
    "drawn": _drawn,
    "values": _values,
    "texts": _texts,
    "fields": _fields,
    "inner": _inner,
    "elsewhere": _elsewhere,
    "sockets": _sockets,
    "leaving": _leaving,
    "guides": _guides,
}
