"""One response as it grows: its events, in their order, and the whole of it."""

from __future__ import annotations

import secrets
import time
from typing import Any

from front.errors import ProblemError
from front.open_responses.asks import ResponsesAsk
from front.open_responses.kinds import Item, Kinds, Scores
from front.parts.events import Begun, Ended, Event, Text
from front.responses import event
from front.tools import of_openai

CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}  # of errors within a stream, by status
TOO_LONG = "context_length_exceeded"


class Growing:
    """A response and its items, of which one is open at a time. Each event has a number, from 0 on."""

    def __init__(self, ask: ResponsesAsk, model: str) -> None:
        self._head = head_of(ask, model)
        self._kinds = Kinds(ask)
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._open: Item | None = None
        self.has_begun = False

    def begin(self) -> bytes:
        """What opens the response: sent once."""
        self.has_begun = True
        return self._of_response("created", "in_progress") + self._of_response("in_progress", "in_progress")

    def sign(self) -> bytes:
        """That the answer still comes."""
        return self._of_response("in_progress", "in_progress") if self.has_begun else self.begin()

    def add(self, events: list[Event], scores: list[Scores]) -> bytes:
        """Returns the events of what came. `scores`: of each text in it."""
        of_texts = iter(scores)
        return b"".join(
            self._added(each, next(of_texts) if isinstance(each, Text) else []) for each in events
        )

    def _added(self, each: Event, scores: Scores) -> bytes:
        if isinstance(each, Ended):
            return self._close("completed")
        begun = b""
        if self._open is None or not self._open.takes(each):
            begun = self._close() + self._begin(self._kinds.item_of(each))
        assert self._open is not None
        if isinstance(each, Begun):
            return begun
        return begun + self._of_item(self._open.delta(each.text, scores))

    def _begin(self, item: Item) -> bytes:
        self._open = item
        added = self._event(
            "output_item.added", output_index=len(self._items), item=item.whole("in_progress")
        )
        return added + self._of_item(item.begun())

    def _close(self, status: str = "") -> bytes:
        if self._open is None:
            return b""
        ended, item = self._of_item(self._open.ended()), self._open.whole(status or self._open.left)
        done = self._event("output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = None
        return ended + done

    def end(self, reason: str | None, usage: dict[str, Any]) -> bytes:
        """Closes item and response. `reason`: why it is incomplete; None: it is complete."""
        begun = b"" if self._items or self._open else self._begin(self._kinds.item_of(Text("")))
        status = "incomplete" if reason else "completed"
        closed = begun + self._close("incomplete" if reason else "")
        return closed + self._event(status, response=self.whole(reason, usage))

    def failed(self, problem: ProblemError) -> bytes:
        code = TOO_LONG if problem.code == TOO_LONG else CODES.get(problem.status, "server_error")
        error = {"code": code, "message": problem.body["error"]["message"]}
        response = {**self._head, "status": "failed", "error": error}
        return self._event("failed", response=response)

    def whole(self, reason: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        """The response, once it is ended."""
        return {
            **self._head,
            "status": "incomplete" if reason else "completed",
            "completed_at": None if reason else int(time.time()),
            "incomplete_details": {"reason": reason} if reason else None,
            "output": self._items,
            "usage": usage,
        }

    def _of_item(self, events: list[tuple[str, dict[str, Any]]]) -> bytes:
        """Events of the item that is open."""
        place = {"item_id": self._open.id if self._open else "", "output_index": len(self._items)}
        return b"".join(self._event(name, **place, **fields) for name, fields in events)

    def _of_response(self, kind: str, status: str) -> bytes:
        return self._event(kind, response={**self._head, "status": status})

    def _event(self, kind: str, **fields: Any) -> bytes:
        name = f"response.{kind}"
        made = event({"type": name, "sequence_number": self._number, **fields}, name)
        self._number += 1
        return made


def head_of(ask: ResponsesAsk, model: str) -> dict[str, Any]:
    """What a response says of its request, and of itself before anything came."""
    reasoning = ask.reasoning or {}
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": ask.instructions,
        "max_output_tokens": ask.max_output_tokens,
        "max_tool_calls": None,
        "metadata": ask.metadata or {},
        "model": ask.model or model,
        "output": [],
        "parallel_tool_calls": ask.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": ask.temperature,
        "text": {"format": (ask.text or {}).get("format") or {"type": "text"}},
        "tool_choice": ask.tool_choice or "auto",
        "tools": [
            {"type": "function", "parameters": None, "strict": None, **tool["function"]}
            for tool in of_openai(ask.given_tools)
        ],
        "top_logprobs": ask.top_logprobs or 0,
        "top_p": ask.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }
