"""Errors in OpenAI's shape. Every one that a client of the front can get is made here."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from starlette.responses import Response

from client.errors import GaplessError, RefusedError, TimedOutError, UnavailableError

RETRY_AFTER_S = 1
INVALID = "invalid_value"
# fields of the ensemble by what OpenAI's clients call them, where the names differ
THEIR_NAMES = {
    "text_input": "prompt",
    "input_ids": "prompt",
    "stop_words": "stop",
    "num_top_log_probs": "top_logprobs",
    "return_log_probs": "logprobs",
    "return_prompt_log_probs": "echo",
    "logit_bias_ids": "logit_bias",
    "request_priority": "priority",
    "lora_name": "model",
}
FIELD = re.compile(r"([a-z_]+)((?:\[\d+\])?(?:\.[a-z_]+)?)(?=[\s:,])")


class ProblemError(Exception):
    """A request that gets an error: its status, and what its body says."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        param: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def response(self) -> Response:
        return json_response(self.body, self.status, self.headers)

    @property
    def headers(self) -> dict[str, str]:
        """What tells clients whether and when to try again. After a 500 the front has tried already."""
        if self.status in (429, 503):
            return {"retry-after": str(RETRY_AFTER_S)}
        return {"x-should-retry": "false"} if self.status == 500 else {}


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def refused(param: str, message: str, code: str = INVALID) -> ProblemError:
    """Of a field whose value can't be taken. `message` goes on behind the field's name."""
    return ProblemError(400, f"{param}{message}", code, param)


def of_ensemble(error: GaplessError) -> ProblemError:
    """What the ensemble said, or the connection to it."""
    said = str(error)
    if isinstance(error, RefusedError):
        return of_door(said, error.code)
    if error.code == "queue_full":
        return ProblemError(429, said, error.code, kind="rate_limit_error")
    if isinstance(error, UnavailableError | TimedOutError):
        if not error.code:
            said = f"the server starts, or is started again; try again later ({said})"
        return ProblemError(503, said, error.code or "unavailable", kind="server_error")
    return ProblemError(500, said, error.code or "failed", kind="server_error")


def of_door(said: str, code: str) -> ProblemError:
    """Of a refusal, which begins with the name of a field."""
    found = FIELD.match(said)
    if found is None:
        return ProblemError(400, said, code or INVALID)
    name = THEIR_NAMES.get(found[1], found[1])
    return ProblemError(400, name + said[len(found[1]) :], code or INVALID, name + found[2])
