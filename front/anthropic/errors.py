"""Errors in Anthropic's shape."""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import Response

from front.errors import ProblemError, json_response
from front.names import renamed
from front.responses import event

PATH = "/v1/messages"
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
TOO_LONG = "context_length_exceeded"
COUNTS = re.compile(r"= (\d+) tokens: must be at most (\d+)")
NAMES = {"stop": "stop_sequences"}


def body_of(problem: ProblemError) -> dict[str, Any]:
    other = "api_error" if problem.status >= 500 else "invalid_request_error"
    said = str(renamed(problem, NAMES).body["error"]["message"])
    if problem.code == TOO_LONG:  # the words by which clients know that they have to shorten it, and how much
        counts = COUNTS.search(said)
        said = f"{counts[1]} tokens > {counts[2]} maximum; {said}" if counts else said
        said = f"prompt is too long: {said}"
    return {"type": "error", "error": {"type": KINDS.get(problem.status, other), "message": said}}


def failure(problem: ProblemError) -> Response:
    """The whole answer to a request that failed."""
    return json_response(body_of(problem), problem.status, problem.headers)


def failed(problem: ProblemError) -> bytes:
    """The event of a stream that failed."""
    return event(body_of(problem), "error")
