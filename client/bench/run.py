"""Sends the requests of a load and records when their answers arrive. All times are seconds of one clock; an
answer's times count from when its request was due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..async_client import AsyncClient
from ..errors import GaplessError
from .arrivals import Load, due_times
from .inputs import Ask


@dataclass(slots=True)
class Outcome:
    """One request, from when it was due to its end."""

    due_s: float
    sent_s: float
    first_s: float = 0.0  # first text
    end_s: float = 0.0
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    finish_reason: str = ""
    error: str = ""

    @property
    def ttft_s(self) -> float:
        return (self.first_s or self.end_s) - self.due_s

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Of answers with at least two tokens."""
        more = self.num_output_tokens - 1
        return (self.end_s - self.first_s) / more if more > 0 and self.first_s else None


Booked = Callable[[Outcome], None]


async def run(client: AsyncClient, load: Load, asked: Sequence[Ask], seed: int, book: Booked) -> None:
    """Sends all requests and returns when they have ended. Calls `book` with each outcome at its end."""
    await (
        _closed_loop(client, load.concurrency, asked, book)
        if load.concurrency
        else _open_loop(client, load, asked, seed, book)
    )


async def _closed_loop(client: AsyncClient, concurrency: int, asked: Sequence[Ask], book: Booked) -> None:
    left = iter(asked)

    async def one_after_the_other() -> None:
        for ask in left:
            book(await answer(client, ask, time.monotonic()))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(one_after_the_other())


async def _open_loop(client: AsyncClient, load: Load, asked: Sequence[Ask], seed: int, book: Booked) -> None:
    start_s = time.monotonic()

    async def at(due_s: float, ask: Ask) -> None:
        await asyncio.sleep(due_s - time.monotonic())
        book(await answer(client, ask, due_s))

    async with asyncio.TaskGroup() as group:
        for due_s, ask in zip(due_times(load, len(asked), seed), asked, strict=True):
            group.create_task(at(start_s + float(due_s), ask))


async def answer(client: AsyncClient, ask: Ask, due_s: float) -> Outcome:
    """Sends one request and returns its outcome; a failed request has an outcome with an error."""
    outcome = Outcome(due_s, time.monotonic())
    counts = {"return_num_input_tokens": True, "return_num_output_tokens": True}
    try:
        async for piece in client.stream(ask.prompt, **{**ask.parameters, **counts}):
            outcome.end_s = time.monotonic()
            if piece.text and not outcome.first_s:
                outcome.first_s = outcome.end_s
            outcome.num_input_tokens = piece.num_input_tokens or outcome.num_input_tokens
            outcome.num_output_tokens += piece.num_output_tokens or 0
            outcome.finish_reason = piece.finish_reason
    except GaplessError as error:
        outcome.end_s = time.monotonic()
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome
