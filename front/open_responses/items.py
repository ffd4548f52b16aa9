"""One response as it grows: its events, in their order, and the whole of it."""

from __future__ import annotations

import secrets
import time
from typing import Any

from front.errors import ProblemError
from front.open_responses.asks import ResponsesAsk
from front.responses import event
from front.tools import of_openai

CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}  # of errors within a stream, by status
TOO_LONG = "context_length_exceeded"


class Growing:
    """A response with one item, a message. Each event has a number, from 0 on."""

    def __init__(self, ask: ResponsesAsk, model: str) -> None:
        self._head = head_of(ask, model)
        self._number = 0
        self._item_id = f"msg_{secrets.token_hex(16)}"
        self._texts: list[str] = []
        self._scores: list[dict[str, Any]] = []
        self.has_begun = False

    def begin(self) -> bytes:
        """What opens the response: sent once."""
        self.has_begun = True
        return self._of_response("created", "in_progress") + self._of_response("in_progress", "in_progress")

    def sign(self) -> bytes:
        """That the answer still comes."""
        return self._of_response("in_progress", "in_progress") if self.has_begun else self.begin()

    def open_item(self) -> bytes:
        """The message, and its one part."""
        added = self._event("output_item.added", output_index=0, item=self._item("in_progress", []))
        return added + self._event("content_part.added", **self._place, part=self._part("", []))

    def delta(self, text: str, scores: list[dict[str, Any]]) -> bytes:
        self._texts.append(text)
        self._scores += scores
        return self._event("output_text.delta", **self._place, delta=text, logprobs=_without_bytes(scores))

    def end(self, reason: str | None, usage: dict[str, Any]) -> bytes:
        """Closes part, item and response. `reason`: why it is incomplete; None: it is complete."""
        text, scores, status = "".join(self._texts), self._scores, "incomplete" if reason else "completed"
        part = self._part(text, scores)
        return b"".join(
            (
                self._event("output_text.done", **self._place, text=text, logprobs=_without_bytes(scores)),
                self._event("content_part.done", **self._place, part=part),
                self._event("output_item.done", output_index=0, item=self._item(status, [part])),
                self._event(status, response=self.whole(text, scores, reason, usage)),
            )
        )

    def failed(self, problem: ProblemError) -> bytes:
        code = TOO_LONG if problem.code == TOO_LONG else CODES.get(problem.status, "server_error")
        error = {"code": code, "message": problem.body["error"]["message"]}
        response = {**self._head, "status": "failed", "error": error}
        return self._event("failed", response=response)

    def whole(
        self, text: str, scores: list[dict[str, Any]], reason: str | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        status = "incomplete" if reason else "completed"
        return {
            **self._head,
            "status": status,
            "completed_at": None if reason else int(time.time()),
            "incomplete_details": {"reason": reason} if reason else None,
            "output": [self._item(status, [self._part(text, scores)])],
            "usage": usage,
        }

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        made = {"id": self._item_id, "type": "message", "role": "assistant"}
        return {**made, "status": status, "content": content}

    def _part(self, text: str, scores: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": scores}

    def _of_response(self, kind: str, status: str) -> bytes:
        return self._event(kind, response={**self._head, "status": status})

    def _event(self, kind: str, **fields: Any) -> bytes:
        name = f"response.{kind}"
        made = event({"type": name, "sequence_number": self._number, **fields}, name)
        self._number += 1
        return made


def _without_bytes(scores: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As events have them."""
    return [
        {
            "token": each["token"],
            "logprob": each["logprob"],
            "top_logprobs": [
                {"token": top["token"], "logprob": top["logprob"]} for top in each["top_logprobs"]
            ],
        }
        for each in scores
    ]


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
        "text": {"format": {"type": "text"}},
        "tool_choice": "none" if ask.tool_choice == "none" else "auto",
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
