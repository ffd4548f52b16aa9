"""What chats and completions have in common: several answers to one request, whole or in chunks."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from starlette.responses import Response

from client.wire import Piece
from front.answers import Asker, Question, answers
from front.asks import Ask
from front.model import Model
from front.responses import Events, Whole, event
from front.usage import Usage

ID_BYTES = 16


def finish_reason(piece: Piece) -> str | None:
    """OpenAI's; None while the answer goes on."""
    if not piece.finish_reason:
        return None
    return "stop" if piece.finish_reason == "stop" else "length"


class Answering(ABC):
    """One request, and the answers to its `questions`, which have numbers from 0."""

    prefix: str  # of its id
    kind: str  # of the whole answer's object
    kind_of_chunks: str

    def __init__(self, ask: Ask, questions: Sequence[Question], model: Model, client: Asker) -> None:
        self._ask = ask
        self._is_streamed = bool(ask.stream)
        self._came = answers(client, questions, self._is_streamed, ask.num_choices)
        self._usage = Usage(ask.num_choices)
        self._head = {
            "id": f"{self.prefix}-{secrets.token_hex(ID_BYTES)}",
            "object": self.kind_of_chunks if self._is_streamed else self.kind,
            "created": int(time.time()),
            "model": ask.model or model.name,
        }

    @abstractmethod
    def choice(self, number: int, piece: Piece) -> dict[str, Any]:
        """Returns a whole answer."""

    @abstractmethod
    def chunks(self, number: int, piece: Piece) -> Iterator[dict[str, Any]]:
        """Yields what chunks have of an answer: nothing, or several."""

    def response(self) -> Response:
        return Events(self._events()) if self._is_streamed else Whole(self._whole())

    async def _whole(self) -> dict[str, Any]:
        """Raises ProblemError."""
        choices: dict[int, dict[str, Any]] = {}
        async for number, piece in self._came:
            self._usage.add(number, piece)
            choices[number] = self.choice(number, piece)
        ordered = [choices[number] for number in sorted(choices)]
        return {**self._head, "choices": ordered, "usage": self._usage.plain()}

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """The chunks of one piece are sent together. Raises ProblemError."""
        usage = {"usage": None} if self._ask.includes_usage else {}
        async for number, piece in self._came:
            self._usage.add(number, piece)
            made = [{**self._head, "choices": [choice], **usage} for choice in self.chunks(number, piece)]
            if made:
                yield b"".join(map(event, made))
        if self._ask.includes_usage:
            yield event({**self._head, "choices": [], "usage": self._usage.plain()})
