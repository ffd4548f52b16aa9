"""Answers that outlast the server: when tritonserver, the scheduler model, the tokenizer or the detokenizer
dies, the request is sent again once the server is back, with the tokens that came before. Who reads the
pieces sees a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

from client.async_client import AsyncClient
from client.errors import GaplessError, RefusedError, UnavailableError
from client.parameters import Parameters
from client.retries import Retries
from client.wire import Piece, Prompt, request_message
from front.record import current

MAX_LOST = 8  # attempts, one after the other, that brought no token: the request itself may end the server
MAX_FAILED = 3  # such attempts that failed inside, while the server was there
NEW_S = (
    60.0  # a request that no server has had waits for a restart (docs/operations.md), not for a first start
)
UNREACHED = re.compile("ailed to connect")  # gRPC's words
LOOK_EVERY_S = 0.2
PAUSES = Retries(first_s=0.5)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an answer waits for the server. `is_up` says whether Triton and its models answer, as the
    launcher sees it; `is_ending`, whether the server drains: then it does not come back. `longest_s`: without
    a token; the launcher itself gives a start up after server.ready_s.
    """

    is_up: Callable[[], bool]
    is_ending: Callable[[], bool]
    longest_s: float


class LastingClient(AsyncClient):
    """An AsyncClient whose answers go on after the server has died, and in float32 are those without its
    death if they have a seed. A whole answer, of which nothing has come before, begins anew.
    """

    def __init__(self, url: str, patience: Patience) -> None:
        super().__init__(url, retries=Retries(attempts=1))
        self._patience = patience

    async def generate(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> Piece:
        """Returns the whole answer in one piece. Raises GaplessError."""
        attempts = _Attempts(self._patience)
        while True:
            try:
                async with contextlib.aclosing(self._asked(prompt, False, parameters)) as pieces:
                    answers = [piece async for piece in pieces]
                return answers[0]
            except GaplessError as error:
                await attempts.wait_after(error)

    def stream(self, prompt: Prompt, **parameters: Unpack[Parameters]) -> AsyncGenerator[Piece, None]:
        """Yields pieces of the answer when they arrive. Raises GaplessError."""
        return self._lasting(prompt, parameters)

    async def _lasting(self, prompt: Prompt, parameters: Parameters) -> AsyncGenerator[Piece, None]:
        attempts, delivered, num_cached = _Attempts(self._patience), list[int](), None
        while True:
            asked: dict[str, Any] = {**parameters, "return_output_ids": True}
            if delivered:
                asked["delivered_ids"] = delivered
            try:
                async with contextlib.aclosing(self._asked(prompt, True, asked)) as pieces:
                    async for piece in pieces:
                        attempts.came(len(piece.output_ids))
                        delivered += piece.output_ids
                        # what the attempts after the first find in the cache is their own
                        if num_cached is None:
                            num_cached = piece.num_cached_tokens
                        is_same = piece.num_cached_tokens == num_cached
                        yield piece if is_same else replace(piece, num_cached_tokens=num_cached)
                return
            except GaplessError as error:
                await attempts.wait_after(error)

    def _asked(
        self, prompt: Prompt, is_streamed: bool, parameters: Mapping[str, Any]
    ) -> AsyncGenerator[Piece, None]:
        """One attempt, under the name of the HTTP request."""
        request = request_message(prompt, is_streamed, parameters)
        request.id = current().request_id
        return self._noted(self._pieces(request))

    async def _noted(self, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
        async with contextlib.aclosing(pieces) as all_pieces:
            last_s = 0.0
            async for piece in all_pieces:
                last_s = current().came(piece, last_s)
                yield piece


class _Attempts:
    """Of one answer."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._num_lost = self._num_failed = 0  # since the last token
        self._was_taken = False  # a server had it
        self._came_s = time.monotonic()  # when the last token came

    def came(self, num_tokens: int) -> None:
        self._was_taken = True
        if num_tokens:
            self._num_lost = self._num_failed = 0
            self._came_s = time.monotonic()

    async def wait_after(self, error: GaplessError) -> None:
        """Waits until it makes sense to ask again. Raises `error` if it makes none."""
        self._num_lost += 1
        self._num_failed += not isinstance(error, UnavailableError)
        if self._is_final(error):
            raise error
        self._was_taken = self._was_taken or not UNREACHED.search(str(error))
        longest_s = self._patience.longest_s if self._was_taken else min(NEW_S, self._patience.longest_s)
        await asyncio.sleep(PAUSES.pause_s(self._num_lost))
        while not self._patience.is_up():
            if self._patience.is_ending() or time.monotonic() - self._came_s > longest_s:
                raise error
            await asyncio.sleep(LOOK_EVERY_S)

    def _is_final(self, error: GaplessError) -> bool:
        if isinstance(error, RefusedError) or error.code == "shutting_down" or self._patience.is_ending():
            return True
        if error.code == "queue_full" and not self._was_taken:
            return True
        return self._num_lost >= MAX_LOST or self._num_failed >= MAX_FAILED
