"""Asks the ensemble, for one answer or for several at the same time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, Unpack

from client.errors import GaplessError
from client.parameters import Parameters
from client.wire import Piece, Prompt
from front.errors import of_ensemble
from front.lasting import joined
from front.record import current

Question = tuple[Prompt, Parameters]
Answers = AsyncGenerator[tuple[int, Piece], None]


class Asker(Protocol):
    """A LastingClient, or what asks one."""

    def stream(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> AsyncGenerator[Piece, None]: ...


async def answers(
    client: Asker, questions: Sequence[Question], is_streamed: bool, num_choices: int = 1
) -> Answers:
    """Yields (number of the question, piece) as they come, until the last piece of each; if not `is_streamed`
    the only one. `num_choices` questions have one prompt. Raises ProblemError at the first that fails: all
    others are cancelled then, as they are when the generator is closed.
    """
    asked = [
        _noted(client, question, is_streamed, number // num_choices)
        for number, question in enumerate(questions)
    ]
    try:
        if len(questions) == 1:
            async with contextlib.aclosing(asked[0]) as pieces:
                async for piece in pieces:
                    yield 0, piece
            return
        async with contextlib.aclosing(_side_by_side(asked)) as several:
            async for number, piece in several:
                yield number, piece
    except GaplessError as error:
        raise of_ensemble(error) from None


async def _noted(
    client: Asker, question: Question, is_streamed: bool, prompt_number: int
) -> AsyncGenerator[Piece, None]:
    """Each piece is in the request's record when it comes, also where the whole answer is yielded at once."""
    prompt, parameters = question
    came: list[Piece] = []
    last_s = 0.0
    async with contextlib.aclosing(client.stream(prompt, **parameters)) as pieces:
        async for piece in pieces:
            last_s = current().came(prompt_number, piece, last_s)
            if is_streamed:
                yield piece
            else:
                came.append(piece)
    if not is_streamed:
        yield joined(came)


async def _side_by_side(asked: Sequence[AsyncGenerator[Piece, None]]) -> Answers:
    came: asyncio.Queue[tuple[int, Piece | Exception | None]] = asyncio.Queue()

    async def pump(number: int, answer: AsyncGenerator[Piece, None]) -> None:
        try:
            async with contextlib.aclosing(answer) as pieces:
                async for piece in pieces:
                    came.put_nowait((number, piece))
            came.put_nowait((number, None))
        except Exception as error:  # any: the request would wait for ever
            came.put_nowait((number, error))

    pumps = [asyncio.create_task(pump(number, answer)) for number, answer in enumerate(asked)]
    try:
        num_open = len(pumps)
        while num_open:
            number, piece = await came.get()
            if isinstance(piece, Exception):
                raise piece
            if piece is None:
                num_open -= 1
            else:
                yield number, piece
    finally:
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
