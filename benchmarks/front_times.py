"""Measures the times that callers of `/v1` rely on, in one run against one server.

    python -m benchmarks.front_times --json benchmarks/results/front_times.json

`errors`: how long a bad body takes until its error is there, each on a new connection: all bodies of
`tests/support/bad_bodies`, no key and a wrong one, and the hostile ones, with the time to send them; with
nothing else to do, and beside 16 streams. Each error is checked, and that the streams are whole. `session`:
the first token of each turn of two coding agents' sessions of 30 turns, which begin with their recorded
requests and instructions of some thousand tokens. `back`: from kill -9 of the front to an answer of the next
one. All in milliseconds; the model that is served by default, greedy.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.command_line import command_line
from benchmarks.common.http_streams import HttpStreams
from benchmarks.results_file import table, write_result
from tests.support.bad_bodies import CHAT, MESSAGES, all_bodies, check
from tests.support.server.hostile_bodies import ATTACKS
from tests.support.server.serving import Gapless
from tests.support.server.toy_model import write_toy_model
from tests.support.sessions import AGENTS, NUM_TURNS, Agent, Body, first_body
from tests.support.toy_engine import toy_settings

KEY = "sk-benchmark"
CONTEXT, TOY_CONTEXT = 8192, 16384  # tokens, for sessions; those of the toy model are shorter
NUM_STREAMS, STREAM_TOKENS = 16, 600
NUM_PASSES, NUM_KILLS = 3, 5
GOOD = json.dumps({"messages": MESSAGES, "max_tokens": 1}).encode()
Row = dict[str, Any]


class Caller:
    """A client with a key."""

    def __init__(self, served: Gapless) -> None:
        self.port = served.front_port

    def post(self, path: str, body: bytes, key: str = KEY) -> tuple[int, Any]:
        with self._asked(path, body, key) as answer:
            return answer.status, json.loads(answer.read())

    def events(self, path: str, body: Body) -> Iterator[Body]:
        with self._asked(path, json.dumps({**body, "stream": True}).encode(), KEY) as answer:
            assert answer.status == 200, answer.read()
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[len(b"data: ") :])

    @contextlib.contextmanager
    def _asked(self, path: str, body: bytes, key: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        with contextlib.closing(connection):
            connection.request("POST", path, body, {"authorization": f"Bearer {key}"} if key else {})
            yield connection.getresponse()


def row_of(part: str, what: str, times_ms: Sequence[float]) -> Row:
    p50, p99 = np.percentile(times_ms, (50, 99))
    found = {"p50_ms": p50, "p99_ms": p99, "longest_ms": max(times_ms)}
    rounded = {name: round(float(value), 1) for name, value in found.items()}
    return {"part": part, "what": what, "count": len(times_ms), **rounded}


# --- errors


def errors(caller: Caller, num_passes: int) -> Iterator[Row]:
    yield from refusals(caller, num_passes, "alone")
    with control_streams(caller):
        yield from refusals(caller, num_passes, f"beside {NUM_STREAMS} streams")


def refusals(caller: Caller, num_passes: int, beside: str) -> Iterator[Row]:
    bad = all_bodies()
    times_ms = [refused_ms(caller, *each) for each in bad * num_passes]
    yield row_of("errors", f"{len(bad)} bad bodies, {beside}", times_ms)
    times_ms = [refused_ms(caller, CHAT, GOOD, key) for key in ("", "sk-another") * 10 * num_passes]
    yield row_of("errors", f"no key, a wrong one, {beside}", times_ms)

    for attack, status, code in ATTACKS:
        times_ms = []
        for _ in range(num_passes + 1):
            began_s = time.perf_counter()
            got, said = attack(caller.port, {"authorization": f"Bearer {KEY}"})
            times_ms.append(1e3 * (time.perf_counter() - began_s))
            assert (got, said["error"]["code"]) == (status, code)
        yield row_of("errors", f"{attack.__name__.replace('_', ' ')}, {beside}", times_ms[1:])


def refused_ms(caller: Caller, path: str, body: bytes, key: str = KEY) -> float:
    began_s = time.perf_counter()
    status, said = caller.post(path, body, key)
    took_ms = 1e3 * (time.perf_counter() - began_s)
    assert (status == 401) is (key != KEY)
    check(path, status, said)
    return took_ms


@contextlib.contextmanager
def control_streams(caller: Caller) -> Iterator[None]:
    """16 streams are open meanwhile, and whole in the end."""
    body = {"messages": MESSAGES, "max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True}
    streams = HttpStreams(
        caller.port,
        CHAT,
        NUM_STREAMS,
        lambda event: bool(event["choices"][0]["delta"].get("content")),
        lambda event: event["choices"][0]["finish_reason"] is not None,
        KEY,
    )
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.extend(streams.run([body] * NUM_STREAMS)))
    thread.start()
    try:
        time.sleep(1)
        yield
    finally:
        thread.join()
        streams.close()
    assert len(came) == NUM_STREAMS
    assert all(timing.ended for timing in came)


# --- back


def back_ms(served: Gapless, caller: Caller) -> float:
    """From the kill to an answer."""
    (pid,) = (pid for pid, words in served.command_lines().items() if "gapless-front" in words)
    os.kill(pid, signal.SIGKILL)
    killed_s = time.perf_counter()
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if caller.post(CHAT, GOOD)[0] == 200:
                return 1e3 * (time.perf_counter() - killed_s)
        time.sleep(0.02)


# --- sessions


def session(caller: Caller, agent: Agent, model: str, num_turns: int) -> Iterator[Row]:
    body, firsts_ms, counts = first_body(agent.name) | {"model": model}, [], []
    for number in range(num_turns):
        first_ms, answer = turn(caller, agent, body)
        firsts_ms.append(first_ms)
        counts.append(agent.counts(answer["usage"]))
        agent.goes_on(body, answer, number)
    share = min(cached / prompt for prompt, cached in counts[1:])
    print(f"{agent.name}: prompts of {counts[0][0]} to {counts[-1][0]} tokens, {share:.3f} cached at least")
    yield row_of("session", f"{agent.name}, turn 1", firsts_ms[:1])
    for part in np.array_split(range(1, num_turns), 3):
        first, last = int(part[0]), int(part[-1]) + 1
        yield row_of("session", f"{agent.name}, turns {first + 1} to {last}", firsts_ms[first:last])


def turn(caller: Caller, agent: Agent, body: Body) -> tuple[float, Body]:
    """Returns when its first token came, and the answer as it is without a stream."""
    began_s, came_s, text, answer = time.perf_counter(), list[float](), "", Body()
    for event in caller.events(agent.path, body):
        if "delta" in event["type"]:
            came_s.append(time.perf_counter())
        if event["type"] == "content_block_delta":
            text += event["delta"].get("text", "")
        answer = event.get("response", answer)
        if event["type"] == "message_delta":
            answer = {"content": [{"type": "text", "text": text}], "usage": event["usage"]}
    came_s.append(time.perf_counter())  # an answer without text
    return 1e3 * (came_s[0] - began_s), answer


def measure(served: Gapless, quick: bool) -> Iterator[Row]:
    caller = Caller(served)
    _, answer = caller.post(CHAT, GOOD)
    yield from errors(caller, 1 if quick else NUM_PASSES)
    for agent in AGENTS:
        yield from session(caller, agent, answer["model"], 4 if quick else NUM_TURNS)
    kills_ms = [back_ms(served, caller) for _ in range(1 if quick else NUM_KILLS)]
    yield row_of("back", "kill -9 of the front", kills_ms)


def main() -> None:
    asked = command_line(__doc__, "an engine that computes nothing, four turns, one kill").parse_args()
    with tempfile.TemporaryDirectory() as directory:
        toy = toy_settings(write_toy_model(Path(directory) / "model"), step_ms=2)
        toy["model.max_model_tokens"] = TOY_CONTEXT
        real = {"model.directory": "auto", "model.max_model_tokens": CONTEXT}
        with Gapless({"GAPLESS_API_KEY": KEY}, **(toy if asked.quick else real)) as served:
            rows = list(measure(served, asked.quick))
    if asked.json:
        write_result(asked.json, {"rows": rows})
    print(table(rows))


if __name__ == "__main__":
    main()
