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

Question = tuple[Prompt, Parameters]
Answers = AsyncGenerator[tuple[int, Piece], None]


class Asker(Protocol):
    """An AsyncClient, or what asks one."""

    async def generate(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> Piece: ...

    def stream(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> AsyncGenerator[Piece, None]: ...


async def answers(client: Asker, questions: Sequence[Question], is_streamed: bool) -> Answers:
    """Yields (number of the question, piece) as they come, until the last piece of each. Raises ProblemError
    at the first that fails: all others are cancelled then, as they are when the generator is closed.
    """
    try:
        if len(questions) == 1:
            async with contextlib.aclosing(_ask(client, questions[0], is_streamed)) as pieces:
                async for piece in pieces:
                    yield 0, piece
            return
        async with contextlib.aclosing(_side_by_side(client, questions, is_streamed)) as several:
            async for number, piece in several:
                yield number, piece
    except GaplessError as error:
        raise of_ensemble(error) from None


async def _ask(client: Asker, question: Question, is_streamed: bool) -> AsyncGenerator[Piece, None]:
    prompt, parameters = question
    if not is_streamed:
        yield await client.generate(prompt, **parameters)
        return
    async with contextlib.aclosing(client.stream(prompt, **parameters)) as pieces:
        async for piece in pieces:
            yield piece


async def _side_by_side(client: Asker, questions: Sequence[Question], is_streamed: bool) -> Answers:
    came: asyncio.Queue[tuple[int, Piece | GaplessError | None]] = asyncio.Queue()

    async def pump(number: int, question: Question) -> None:
        try:
            async with contextlib.aclosing(_ask(client, question, is_streamed)) as pieces:
                async for piece in pieces:
                    came.put_nowait((number, piece))
            came.put_nowait((number, None))
        except GaplessError as error:
            came.put_nowait((number, error))

    pumps = [asyncio.create_task(pump(number, question)) for number, question in enumerate(questions)]
    try:
        num_open = len(pumps)
        while num_open:
            number, piece = await came.get()
            if isinstance(piece, GaplessError):
                raise piece
            if piece is None:
                num_open -= 1
            else:
                yield number, piece
    finally:
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
