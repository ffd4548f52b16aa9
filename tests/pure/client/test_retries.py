"""Both clients against a transport of lists: what is tried again, when, and what the caller sees."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from client import (
    AsyncClient,
    Client,
    FailedError,
    GaplessError,
    Piece,
    RefusedError,
    Retries,
    TimedOutError,
    UnavailableError,
)
from client.errors import from_text
from client.parameters import packed_text
from client.retries import Call
from client.wire import deadline_us, read_piece

BUSY = "in ensemble 'ensemble', too many open requests: 1 are open (streams.max_open) [queue_full]"
RETRIES = Retries(attempts=4, first_s=1.0, most_s=3.0, draw=lambda: 1.0)


class Broken(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return f"broken: {self._code.name}"


GONE = Broken(grpc.StatusCode.UNAVAILABLE)


def response(text: str = "", reason: str = "", error: str = "") -> Any:
    made = service_pb2.ModelStreamInferResponse(error_message=error)
    for name, value in (("text_output", text), ("finish_reason", reason)):
        if not error and (value or name == "text_output"):
            made.infer_response.outputs.add(name=name, datatype="BYTES", shape=[1, 1])
            made.infer_response.raw_output_contents.append(packed_text(value))
    return made


class FakeCall:
    """Yields what an attempt was told to, once; for `for` and `async for`."""

    def __init__(self, script: list[Any]) -> None:
        self.left = list(script)
        self.cancelled = False

    def __iter__(self) -> Iterator[Any]:
        while self.left:
            each = self.left.pop(0)
            if isinstance(each, Exception):
                raise each
            yield each

    async def __aiter__(self) -> AsyncIterator[Any]:
        for each in self:
            await asyncio.sleep(0)
            yield each

    def cancel(self) -> None:
        self.cancelled = True


class FakeServer:
    def __init__(self, *attempts: list[Any]) -> None:
        self._attempts = iter(attempts)
        self.calls: list[FakeCall] = []
        self.timeouts: list[float | None] = []
        self.deadlines_us: list[int] = []

    def __call__(self, request: Any, timeout: float | None) -> FakeCall:
        assert request.model_name == "ensemble"
        self.timeouts.append(timeout)
        self.deadlines_us.append(deadline_us(request))
        self.calls.append(FakeCall(next(self._attempts)))
        return self.calls[-1]


def pieces_of(server: FakeServer) -> list[Piece]:
    with Client("nowhere:1", retries=Retries(attempts=2, first_s=0.0)) as client:
        client._ask = server
        return list(client.stream("x"))


def pieces_of_async(server: FakeServer) -> list[Piece]:
    async def run() -> list[Piece]:
        async with AsyncClient("nowhere:1", retries=Retries(attempts=2, first_s=0.0)) as client:
            client._ask = server
            return [piece async for piece in client.stream("x")]

    return asyncio.run(run())


Ask = Callable[[FakeServer], tuple[str, list[float]]]


def ask(server: FakeServer) -> tuple[str, list[float]]:
    """(text, pauses)."""
    pauses: list[float] = []
    with Client("nowhere:1", retries=RETRIES) as client:
        client._ask, client._sleep = server, pauses.append
        return "".join(piece.text for piece in client.stream("x")), pauses


def ask_async(server: FakeServer) -> tuple[str, list[float]]:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> str:
        async with AsyncClient("nowhere:1", retries=RETRIES) as client:
            client._ask, client._sleep = server, sleep
            return "".join([piece.text async for piece in client.stream("x")])

    return asyncio.run(run()), pauses


both = pytest.mark.parametrize("ask", [ask, ask_async])
ANSWER = [response("Well"), response(), response(" done"), response("", "stop")]


@both
def test_a_busy_or_absent_server_is_asked_again_after_growing_pauses(ask: Ask) -> None:
    server = FakeServer([response(error=BUSY)], [GONE], [response(), GONE], ANSWER)
    assert ask(server) == ("Well done", [1.0, 2.0, 3.0])
    assert all(call.cancelled for call in server.calls)


@both
@pytest.mark.parametrize("end", [response("", "stop"), response(error="it failed")])
def test_the_stream_of_an_answer_is_read_to_its_end(ask: Ask, end: Any) -> None:
    """A cancel that meets the end of a stream makes tritonserver crash."""
    server = FakeServer([response("Well"), end, response()])
    with contextlib.suppress(FailedError):
        ask(server)
    assert server.calls[0].left == []


def test_a_program_that_leaves_after_the_last_piece_cancels_no_open_stream() -> None:
    server = FakeServer([response("Well"), response("", "stop"), response()])
    with Client("nowhere:1") as client:
        client._ask = server
        for piece in client.stream("x"):
            if piece.finish_reason:
                break
    assert server.calls[0].left == []


@both
def test_it_gives_up_after_the_last_attempt(ask: Ask) -> None:
    server = FakeServer([GONE], [GONE], [GONE], [response(error=BUSY)], ANSWER)
    with pytest.raises(UnavailableError, match=r"^too many open requests"):
        ask(server)
    assert len(server.calls) == 4


@both
def test_nothing_is_tried_again_once_text_has_come(ask: Ask) -> None:
    server = FakeServer([response("Well"), GONE], ANSWER)
    with pytest.raises(UnavailableError):
        ask(server)
    assert len(server.calls) == 1


@both
@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (
            [
                response(
                    error="in ensemble 'ensemble', max_tokens = 0: must be a whole number between 1 and 9"
                )
            ],
            RefusedError,
        ),
        ([response(error="the answer could not be turned into text")], FailedError),
        ([Broken(grpc.StatusCode.DEADLINE_EXCEEDED)], TimedOutError),
        ([Broken(grpc.StatusCode.INTERNAL)], FailedError),
        ([response()], FailedError),
    ],
)
def test_other_failures_are_told_at_once(ask: Ask, end: list[Any], kind: type[GaplessError]) -> None:
    server = FakeServer(end, ANSWER)
    with pytest.raises(kind):
        ask(server)
    assert len(server.calls) == 1


def test_leaving_the_loop_cancels_the_call() -> None:
    server = FakeServer(ANSWER)
    with Client("nowhere:1") as client:
        client._ask = server
        for _ in client.stream("x"):
            assert not server.calls[0].cancelled
            break
    assert server.calls[0].cancelled


def test_a_time_out_bounds_all_attempts_together() -> None:
    clock = iter([0.0, 4.0, 9.5, 9.5])
    call = Call(RETRIES, 10.0, lambda: next(clock))
    assert call.pause_s(UnavailableError("busy")) == 1.0
    assert call.left_s() == 0.5
    with pytest.raises(UnavailableError):
        call.pause_s(UnavailableError("busy"))  # the pause would be longer than what is left


def ask_until(server: FakeServer, deadline_s: float) -> None:
    with Client("nowhere:1", retries=RETRIES) as client:
        client._ask, client._sleep = server, lambda _: time.sleep(0.05)
        list(client.stream("x", deadline_s=deadline_s))


def ask_until_async(server: FakeServer, deadline_s: float) -> None:
    async def run() -> None:
        async with AsyncClient("nowhere:1", retries=RETRIES) as client:
            client._ask, client._sleep = server, lambda _: asyncio.sleep(0.05)
            assert [piece async for piece in client.stream("x", deadline_s=deadline_s)]

    asyncio.run(run())


@pytest.mark.parametrize("ask_until", [ask_until, ask_until_async])
def test_a_deadline_does_not_begin_anew_with_each_attempt(
    ask_until: Callable[[FakeServer, float], None],
) -> None:
    server = FakeServer([GONE], [GONE], ANSWER)
    ask_until(server, 60.0)
    first_us, second_us, third_us = server.deadlines_us
    assert first_us == 60_000_000
    assert second_us <= first_us - 40_000
    assert third_us <= second_us - 40_000
    server = FakeServer([GONE], ANSWER)
    ask_until(server, 0.01)
    assert server.deadlines_us == [10_000, 1], "the server ends it"


async def _errors_of_closing(url: str) -> list[Any]:
    client = AsyncClient(url)
    tasks = [
        asyncio.create_task(asked)
        for asked in (client.generate("x"), client.server_version(), client.is_ready(), client.generate("y"))
    ]
    for _ in range(20):  # so that all have asked
        await asyncio.sleep(0)
    tasks[-1].cancel()
    await client.close()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    after = (client.generate("x"), client.server_version(), client.is_ready())
    return ended + await asyncio.gather(*after, return_exceptions=True)


def test_a_closed_client_fails_what_is_awaited_and_what_is_asked_then() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        answer, version, ready, cancelled, *after = asyncio.run(_errors_of_closing(url))
        for each in (answer, version, *after[:2]):
            assert isinstance(each, GaplessError)
            assert str(each) == "the client is closed"
        assert (ready, after[2]) == (False, False)
        assert isinstance(cancelled, asyncio.CancelledError)
        client = Client(url)
        client.close()
        assert not client.is_ready()
        for ask in (client.server_version, lambda: client.generate("x")):
            with pytest.raises(GaplessError, match="the client is closed"):
                ask()


def test_log_probabilities_are_read_token_by_token() -> None:
    made = response("ab")
    for name, dtype, shape, data in (
        ("output_ids", "INT32", [1, 1, 2], struct.pack("<2i", 7, 8)),
        ("output_log_probs", "FP32", [1, 1, 2], struct.pack("<2f", -0.5, -1.0)),
        ("cum_log_probs", "FP32", [1, 1], struct.pack("<f", -1.5)),
        ("top_ids", "INT32", [1, 2, 3], struct.pack("<6i", *range(6))),
    ):
        made.infer_response.outputs.add(name=name, datatype=dtype, shape=shape)
        made.infer_response.raw_output_contents.append(data)
    piece = Piece(
        "ab",
        num_output_tokens=2,
        output_ids=(7, 8),
        output_log_probs=(-0.5, -1.0),
        cum_log_probs=-1.5,
        top_ids=((0, 1, 2), (3, 4, 5)),
    )
    assert read_piece(made) == piece


def scores(*ids: int) -> list[tuple[str, str, list[int], bytes]]:
    """Outputs with the log-probability −id of each token."""
    values = struct.pack(f"<{len(ids)}f", *(-float(token) for token in ids))
    return [
        ("output_ids", "INT32", [1, 1, len(ids)], struct.pack(f"<{len(ids)}i", *ids)),
        ("output_log_probs", "FP32", [1, 1, len(ids)], values),
    ]


def counts(count: int) -> list[tuple[str, str, list[int], bytes]]:
    return [("num_output_tokens", "INT32", [1, 1], struct.pack("<i", count))]


@pytest.mark.parametrize("pieces_of", [pieces_of, pieces_of_async])
def test_pieces_without_text_bring_their_tokens_too(pieces_of: Callable[[FakeServer], list[Piece]]) -> None:
    """Half a character and the beginning of a stop word have tokens
    and log-probabilities, but no text yet.
    """
    script = [response("a"), response(), response(), response("\u0928"), response("", "stop")]
    for made, ids in zip(script, [(1,), (2, 3), (), (4,), (5,)], strict=True):
        for name, dtype, shape, data in [*(scores(*ids) if ids else []), *counts(len(ids))]:
            made.infer_response.outputs.add(name=name, datatype=dtype, shape=shape)
            made.infer_response.raw_output_contents.append(data)
    pieces = pieces_of(FakeServer(script))
    assert [token for piece in pieces for token in piece.output_ids] == [1, 2, 3, 4, 5]
    assert [score for piece in pieces for score in piece.output_log_probs] == [-1.0, -2.0, -3.0, -4.0, -5.0]
    assert sum(piece.num_output_tokens or 0 for piece in pieces) == 5
    assert len(pieces) == 4, "the chunk that only shows that the connection is alive is none"


@pytest.mark.parametrize("pieces_of", [pieces_of, pieces_of_async])
def test_nothing_is_tried_again_once_tokens_have_come(pieces_of: Callable[[FakeServer], list[Piece]]) -> None:
    begun = response()
    for name, dtype, shape, data in scores(1):
        begun.infer_response.outputs.add(name=name, datatype=dtype, shape=shape)
        begun.infer_response.raw_output_contents.append(data)
    with pytest.raises(UnavailableError):
        pieces_of(FakeServer([begun, GONE], ANSWER))


def test_pauses_are_drawn_from_their_upper_half() -> None:
    assert [Retries(draw=lambda: 0.0).pause_s(n) for n in (1, 2, 9)] == [0.125, 0.25, 2.0]
    assert [Retries(draw=lambda: 1.0).pause_s(n) for n in (1, 2, 9)] == [0.25, 0.5, 4.0]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("the server is shutting down and takes no new requests [shutting_down]", UnavailableError),
        ("Stub process 'tokenizer_0' is not healthy.", UnavailableError),
        ("Request for unknown model: 'ensemble' has no available versions", UnavailableError),
        ("'tools': there is no such field", RefusedError),
        ("top_k has the shape [2]: exactly one value is allowed", RefusedError),
        ("lora_task_id = 3: must be absent: this server has no adapters", RefusedError),
        ("the scheduler failed inside", FailedError),
        ("anything at all [queue_full]", UnavailableError),
        ("anything at all [shutting_down]", UnavailableError),
        ("anything at all [context_length_exceeded]", RefusedError),
        ("must be [failed]", FailedError),
        ("must be [engine_failed]", FailedError),
        ("must be [of_another_kind]", RefusedError),
    ],
)
def test_the_kind_of_a_failure_is_told_by_its_code_or_its_text(said: str, kind: type[GaplessError]) -> None:
    assert type(from_text(said)) is kind


def test_the_code_of_a_failure_is_apart_from_its_text() -> None:
    error = from_text("in ensemble 'ensemble', top_k = -1: must be [invalid_value]")
    assert (str(error), error.code) == ("top_k = -1: must be", "invalid_value")
    assert from_text("top_k must be [1]").code == ""
