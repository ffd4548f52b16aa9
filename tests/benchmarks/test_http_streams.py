"""The client of the benchmarks that serve, and servers that close connections."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread

import pytest

from benchmarks.common.http_streams import END, HttpStreams, OpenAIStreams
from benchmarks.common.work import Timing
from benchmarks.tinker_cost import ANSWER, tpots_ms

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def served(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server that answers one connection after the other, and closes each."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        answer(connection)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def streams(port: int) -> HttpStreams:
    return HttpStreams(
        port, "/completion", 1, lambda event: len(event["tokens"]), lambda event: event["stop"]
    )


def one_answer(connection: socket.socket, head: bytes = HEAD, pause_s: float = 0.0) -> None:
    connection.recv(1 << 16)
    event = b"data: " + json.dumps({"tokens": [1, 2], "stop": True}).encode() + b"\n\n"
    connection.sendall(head)
    time.sleep(pause_s)
    connection.sendall(b"%x\r\n" % len(event) + event + END)


def test_a_request_is_sent_again_where_the_server_closes_after_every_answer() -> None:
    with served(one_answer) as port, contextlib.closing(streams(port)) as asked:
        timings = asked.run([{"number": number} for number in range(20)])
    assert [len(timing.tokens) for timing in timings] == [2] * 20
    assert all(timing.ended for timing in timings)


def test_a_head_that_ends_with_a_zero_is_not_the_end_of_an_answer() -> None:
    """llama.cpp's server sends it before the first token."""
    head = HEAD.removesuffix(b"\r\n") + b"Keep-Alive: timeout=5, max=100\r\n\r\n"
    answer = partial(one_answer, head=head, pause_s=0.1)
    with served(answer) as port, contextlib.closing(streams(port)) as asked:
        (timing,) = asked.run([{}])
    assert len(timing.tokens) == 2


def test_a_server_that_closes_instead_of_its_first_answer_ends_the_run() -> None:
    with (
        served(lambda connection: connection.recv(1 << 16)) as port,
        contextlib.closing(streams(port)) as asked,
        pytest.raises(RuntimeError, match="closed"),
    ):
        asked.run([{}])


def read(path: str, choices: list[dict[str, object]]) -> Timing:
    """What a client of OpenAI's interface makes of chunks that come a second after each other."""
    timing = Timing(0.0, [])
    events = [b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" for choice in choices]
    with contextlib.closing(OpenAIStreams(1, path, 0)) as asked:
        asked._read([(float(at), event) for at, event in enumerate(events)], timing)
    return timing


def test_a_chunk_without_text_is_no_token() -> None:
    """That of the role, and that of the end."""
    deltas = [{"role": "assistant", "content": ""}, {"content": "a"}, {}]
    chat = [{"delta": delta, "finish_reason": None if delta else "length"} for delta in deltas]
    texts = [{"text": text, "finish_reason": None if text else "length"} for text in ("a", "b", "")]
    found = [read("/v1/chat/completions", chat), read("/v1/completions", texts)]
    assert [timing.tokens for timing in found] == [[1.0], [0.0, 1.0]]
    assert [timing.ended for timing in found] == [2.0, 2.0]


def test_the_time_per_token_is_that_of_the_whole_answer_however_few_chunks_it_came_in() -> None:
    assert tpots_ms([Timing(0.0, [1.0, 1.5], 1.0 + 0.1 * (ANSWER - 1))]).tolist() == pytest.approx([100.0])
