"""Answers that outlast the server: the request is sent again with the tokens that came before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from client.errors import FailedError, GaplessError, RefusedError, UnavailableError
from client.parameters import Parameters
from client.retries import Retries
from client.wire import Piece, Prompt, request_message
from front import attempts
from front.answers import answers
from front.anthropic.errors import failure
from front.attempts import Attempts, LostError, Patience, Turn
from front.errors import ProblemError, of_ensemble
from front.lasting import LastingClient
from front.record import CURRENT, Record
from front.until_full import until_full
from tests.support.ensemble import Ensemble, inputs_of, response

T = TypeVar("T")
TOKENS = tuple(range(20, 29))
LOST = (grpc.StatusCode.UNAVAILABLE, "Socket closed")


@dataclass
class Mortal(Ensemble):
    """Answers with TOKENS, each a piece of its own. The first `num_deaths` attempts end after `life` tokens,
    with `says` in the stream, or are cancelled there, or else with a lost connection.
    """

    num_deaths: int = 1
    life: int = 4
    says: str = ""
    cancels: bool = False

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        """As Triton's service."""
        asked = inputs_of(next(requests))
        self.asked.append(asked)
        pieces = [
            Piece(f"{token} ", "length" * (token == TOKENS[-1]), 3, len(self.asked), 1, (token,))
            for token in TOKENS[len(asked.get("delivered_ids", ())) :]
        ]
        is_last_life = len(self.asked) <= self.num_deaths
        for piece in pieces[: self.life if is_last_life else None]:
            yield response(piece)
        if is_last_life and self.cancels:
            yield response(Piece("a part ", "cancelled", 3, len(self.asked), 1, (77,)))
        elif is_last_life and self.says:
            yield from Ensemble(error=self.says).ModelStreamInfer(iter([_request()]), context)
        elif is_last_life:
            context.abort(*LOST)


def _request() -> Any:
    return request_message("x", True, {})


class World:
    """A server that is away for some looks at it after each death."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attempts, "PAUSES", Retries(first_s=0.01, most_s=0.01))
        monkeypatch.setattr(attempts, "LOOK_EVERY_S", 0.01)
        monkeypatch.setattr(attempts, "SETTLED_S", 0.0)
        self.num_looks = 0
        self.looks_away = 3
        self.is_ending = False
        self.longest_s = 60.0

    def is_up(self) -> bool:
        self.num_looks += 1
        return self.num_looks > self.looks_away

    def pieces(self, ensemble: Ensemble, is_streamed: bool = True) -> list[Piece]:
        return self._asked(ensemble, lambda client: _pieces(client, is_streamed))

    def record(self, ensemble: Ensemble) -> Record:
        """Of a request with two answers."""
        CURRENT.set(record := Record())
        self._asked(ensemble, _noted)
        return record

    def _asked(self, ensemble: Ensemble, ask: Callable[[LastingClient], Coroutine[Any, Any, T]]) -> T:
        server = grpc.server(futures.ThreadPoolExecutor(4))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(ensemble, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            return asyncio.run(self._with_client(f"127.0.0.1:{port}", ask))
        finally:
            server.stop(0)

    async def _with_client(self, url: str, ask: Callable[[LastingClient], Coroutine[Any, Any, T]]) -> T:
        patience = Patience(self.is_up, lambda: self.is_ending, self.longest_s)
        async with LastingClient(url, patience) as client:
            return await ask(client)


async def _pieces(client: LastingClient, is_streamed: bool) -> list[Piece]:
    if is_streamed:
        return [piece async for piece in client.stream("go on", seed=3)]
    return [await client.generate("go on", seed=3)]


async def _noted(client: LastingClient) -> None:
    async for _ in answers(client, [("go on", {"seed": seed}) for seed in range(2)], True, num_choices=2):
        pass


def attempts_of(
    turn: Turn | None = None, is_up: Callable[[], bool] = lambda: True, longest_s: float = 60.0
) -> Attempts:
    return Attempts(Patience(is_up, lambda: False, longest_s), set(), turn or Turn())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("says", ["", "Stub process 'a' is not healthy.", "a part was lost [failed]"])
def test_a_stream_goes_on_after_the_tokens_that_came(world: World, says: str) -> None:
    ensemble = Mortal(num_deaths=2, says=says)
    pieces = world.pieces(ensemble)
    assert [token for piece in pieces for token in piece.output_ids] == list(TOKENS)
    assert "".join(piece.text for piece in pieces) == "".join(f"{token} " for token in TOKENS)
    assert [asked.get("delivered_ids") for asked in ensemble.asked] == [None, TOKENS[:4], TOKENS[:8]]
    assert {asked["seed"] for asked in ensemble.asked} == {3}
    assert {piece.num_cached_tokens for piece in pieces} == {1}, "what the first attempt found"
    assert world.num_looks > 3


def test_so_does_one_that_the_server_took_for_left(world: World) -> None:
    ensemble = Mortal(cancels=True)
    pieces = world.pieces(ensemble)
    assert "".join(piece.text for piece in pieces) == "".join(f"{token} " for token in TOKENS)
    assert pieces[-1].finish_reason == "length"
    assert [asked.get("delivered_ids") for asked in ensemble.asked] == [None, TOKENS[:4]]


def test_each_token_of_an_answer_that_went_on_is_counted_once(world: World) -> None:
    record = world.record(Mortal(num_deaths=2, cancels=True))
    assert (record.num_prompt_tokens, record.num_output_tokens) == (3, 2 * len(TOKENS))
    assert record.finish_reasons == ["length", "length"]


def test_so_does_a_whole_answer(world: World) -> None:
    ensemble = Mortal()
    (piece,) = world.pieces(ensemble, is_streamed=False)
    assert (piece.output_ids, piece.text) == (TOKENS, "".join(f"{token} " for token in TOKENS))
    assert (piece.num_output_tokens, piece.num_input_tokens, piece.num_cached_tokens) == (9, 3, 1)
    assert piece.finish_reason == "length"
    assert [asked.get("delivered_ids") for asked in ensemble.asked] == [None, TOKENS[:4]]


def test_a_request_that_ends_every_server_is_given_up(world: World) -> None:
    ensemble = Mortal(num_deaths=100, life=0)
    with pytest.raises(LostError, match=r"given up after 4 attempts .*Socket closed") as lost:
        world.pieces(ensemble)
    assert len(ensemble.asked) == attempts.MAX_LOST
    problem = of_ensemble(lost.value)
    assert (problem.status, problem.code) == (500, "request_lost")
    for made in (problem.response(), failure(problem)):  # OpenAI's and Anthropic's clients try again else
        assert made.headers["x-should-retry"] == "false"


def test_requests_that_a_server_had_twice_when_it_ended_are_sent_one_at_a_time(world: World) -> None:
    """So the one that ends it takes no other one along."""
    turn, num_open, num_asked = Turn(), 0, 0

    async def is_answered(kills: bool) -> bool:
        nonlocal num_open, num_asked
        asked = attempts_of(turn)
        while True:
            num_asked += kills
            num_open += 1
            begins_alone = num_open == 1
            await asyncio.sleep(0.05)
            is_lost = kills or not begins_alone or num_open > 1
            num_open -= 1
            if not is_lost:
                asked.came(1)
                return True
            try:
                await asked.wait_after(UnavailableError("Socket closed"))
            except LostError:
                return False

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*map(is_answered, (False, True, False)))

    assert asyncio.run(all_of_them()) == [True, False, True]
    assert num_asked == attempts.MAX_LOST


def test_when_one_of_them_is_given_up_the_others_go_on_together(world: World) -> None:
    turn = Turn()

    async def ask() -> None:
        kills, others = attempts_of(turn), [attempts_of(turn) for _ in range(3)]
        await lose(kills, attempts.SUSPECT_AFTER)
        assert turn.lock.locked()
        waiting = [asyncio.create_task(lose(each, attempts.SUSPECT_AFTER)) for each in others]
        await asyncio.sleep(0.1)
        assert not any(each.done() for each in waiting)
        kept = await turn_of(kills)
        assert isinstance(kept, LostError)
        await asyncio.gather(*waiting)
        assert not turn.lock.locked()

    async def turn_of(kills: Attempts) -> BaseException | None:
        """The killer's later losses come before the others get the turn."""
        kills._num_lost = attempts.MAX_LOST - 1
        try:
            await lose(kills, 1)
        except LostError as error:
            return error
        return None

    asyncio.run(asyncio.wait_for(ask(), 30))


async def lose(asked: Attempts, times: int) -> None:
    for _ in range(times):
        await asked.wait_after(UnavailableError("Socket closed"))


def test_one_of_them_whose_first_token_takes_long_holds_up_the_next_one_for_a_while_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "ALONE_S", 0.05)

    async def ask() -> None:
        turn = Turn()
        for _ in range(2):
            await lose(attempts_of(turn), attempts.SUSPECT_AFTER)

    asyncio.run(asyncio.wait_for(ask(), 30))


def test_one_of_them_whose_client_leaves_while_it_waits_holds_up_no_other(world: World) -> None:
    async def ask() -> None:
        turn, is_up = Turn(), True
        leaves = attempts_of(turn, is_up=lambda: is_up)
        await lose(leaves, attempts.SUSPECT_AFTER - 1)
        is_up = False
        task = asyncio.create_task(lose(leaves, 1))
        await asyncio.sleep(0.05)
        assert turn.lock.locked()
        task.cancel()
        await lose(attempts_of(turn), attempts.SUSPECT_AFTER)

    asyncio.run(asyncio.wait_for(ask(), 30))


def test_one_of_them_is_sent_when_the_server_has_been_up_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher gives up a server that ends again and again as soon as it is ready."""
    monkeypatch.setattr(attempts, "SETTLED_S", 0.3)

    async def seconds() -> float:
        asked = attempts_of(is_up=world.is_up)
        await lose(asked, attempts.SUSPECT_AFTER - 1)
        world.num_looks, began_s = 0, time.monotonic()
        await lose(asked, 1)
        return time.monotonic() - began_s

    assert asyncio.run(seconds()) >= 0.3


@pytest.mark.parametrize(
    ("said", "code"), [("too many open requests", "queue_full"), ("failed to connect to all addresses", "")]
)
def test_one_for_which_there_was_no_place_or_no_server_may_be_sent_again(
    world: World, said: str, code: str
) -> None:
    async def ask() -> None:
        error, asked = UnavailableError(said), attempts_of()
        error.code = code
        if code:
            asked.came(0)  # a server has had it
        for _ in range(attempts.MAX_VAIN):
            await asked.wait_after(error)

    with pytest.raises(UnavailableError) as raised:
        asyncio.run(ask())
    assert of_ensemble(raised.value).status == (429 if code else 503)


def test_one_that_fails_inside_again_and_again_is_given_up_sooner(world: World) -> None:
    ensemble = Mortal(num_deaths=100, life=0, says="it could not be computed [failed]")
    with pytest.raises(FailedError, match="could not be computed"):
        world.pieces(ensemble)
    assert len(ensemble.asked) == attempts.MAX_FAILED


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ("top_p = 2: must be at most 1 [invalid_value]", RefusedError),
        ("too many open requests [queue_full]", UnavailableError),
        ("the server is shutting down [shutting_down]", UnavailableError),
        ("the engine failed while it ran this request alone [engine_failed]", FailedError),
    ],
)
def test_what_is_no_loss_is_said_at_once(world: World, says: str, kind: type[GaplessError]) -> None:
    ensemble = Mortal(num_deaths=100, life=0, says=says)
    with pytest.raises(kind):
        world.pieces(ensemble)
    assert len(ensemble.asked) == 1


def test_a_full_queue_is_waited_for_by_an_answer_that_has_begun(world: World) -> None:
    ensemble = Mortal(num_deaths=2, says="too many open requests [queue_full]")
    assert world.pieces(ensemble)[-1].finish_reason == "length"


def test_that_full_queue_is_waited_for_as_long_as_a_server(world: World) -> None:
    async def ask(longest_s: float) -> None:
        error = UnavailableError("too many open requests")
        error.code = "queue_full"
        asked = attempts_of(longest_s=longest_s)
        asked.came(1)
        for _ in range(2 * attempts.MAX_VAIN):
            await asked.wait_after(error)

    asyncio.run(ask(60.0))
    with pytest.raises(UnavailableError, match="too many open requests"):
        asyncio.run(ask(0.02))


def test_a_server_that_stays_away_is_waited_for_as_long_as_a_start_may_take(world: World) -> None:
    world.looks_away, world.longest_s = 10**9, 0.3
    ensemble = Mortal()
    with pytest.raises(UnavailableError, match="Socket closed"):
        world.pieces(ensemble)
    assert len(ensemble.asked) == 1


def test_the_time_in_the_queue_does_not_count_as_waiting_for_the_server(world: World) -> None:
    async def ask() -> None:
        asked = attempts_of(is_up=world.is_up, longest_s=0.5)
        for _ in range(2):
            await asyncio.sleep(0.6)  # in the queue
            world.num_looks = 0
            await asked.wait_after(UnavailableError("Socket closed"))

    asyncio.run(ask())


def test_of_requests_that_no_server_has_had_only_some_wait(world: World) -> None:
    """Port 1 takes no connection."""
    world.looks_away, world.longest_s = 10**9, 0.5

    async def ask_three() -> list[float]:
        async with LastingClient(
            "127.0.0.1:1", Patience(world.is_up, lambda: False, 0.5, most_new=2)
        ) as client:

            async def one() -> float:
                began_s = time.monotonic()
                with pytest.raises(UnavailableError, match="ailed to connect"):
                    await client.generate("x")
                return time.monotonic() - began_s

            return sorted(await asyncio.gather(one(), one(), one()))

    quick_s, *waited_s = asyncio.run(ask_three())
    assert quick_s < min(waited_s)
    assert min(waited_s) >= 0.5


def test_a_server_that_drains_does_not_come_back(world: World) -> None:
    world.looks_away, world.is_ending = 10**9, True
    with pytest.raises(UnavailableError):
        world.pieces(Mortal())


class Failing:
    """Its second answer fails with an error that nobody expects; the others wait."""

    def __init__(self) -> None:
        self.num_cancelled = 0

    async def stream(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> AsyncGenerator[Piece, None]:
        yield Piece("a")
        if parameters["seed"] == 1:
            raise ZeroDivisionError
        try:
            await asyncio.Event().wait()
        finally:
            self.num_cancelled += 1


def test_an_error_that_nobody_expects_in_one_of_several_answers_ends_all() -> None:
    failing = Failing()

    async def ask() -> None:
        async for _ in answers(failing, [("go on", {"seed": seed}) for seed in range(3)], True, 3):
            pass

    with pytest.raises(ZeroDivisionError):
        asyncio.run(asyncio.wait_for(ask(), 30))
    assert failing.num_cancelled == 2


class Shorter:
    """A server that refuses the rest of its first answer, because its context is shorter than it was."""

    num_asked = 0

    async def stream(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> AsyncGenerator[Piece, None]:
        self.num_asked += 1
        yield Piece("a")
        if self.num_asked == 1:
            raise RefusedError("max_tokens = 9: must be at most 3")
        yield Piece("b", "length")


def test_an_answer_that_has_begun_is_not_asked_for_from_its_beginning() -> None:
    shorter = Shorter()
    came: list[str] = []

    async def ask() -> None:
        async for _, piece in until_full(shorter, ("go on", {"max_tokens": 9}), True):
            came.append(piece.text)

    with pytest.raises(ProblemError, match="max_tokens = 9"):
        asyncio.run(ask())
    assert (shorter.num_asked, came) == (1, ["a"])
