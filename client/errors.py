"""What can go wrong, as a client sees it.

GaplessError
├── RefusedError       the request is wrong: the message names the field, the value and the limit
├── UnavailableError   nobody there, too many open requests, or shutting down: worth another try later
├── TimedOutError      not done within the client's `timeout_s` (a TimeoutError too)
└── FailedError        the server could not answer, or the connection broke in the middle
"""

from __future__ import annotations

import re

import grpc


class GaplessError(Exception):
    """Anything that kept a request from its answer."""


class RefusedError(GaplessError):
    pass


class UnavailableError(GaplessError):
    pass


class TimedOutError(GaplessError, TimeoutError):
    pass


class FailedError(GaplessError):
    pass


KINDS: dict[grpc.StatusCode, type[GaplessError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: RefusedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: TimedOutError,
}
# Over gRPC streams Triton sends a failed request's text without its code, so the text has to tell. There is a
# header that brings the code, `triton_grpc_error`, but in 2.51 the second failure that it announces ends the
# whole server.
UNAVAILABLE = re.compile(
    r"^too many |shutting down|not healthy|no available versions|is not ready|stopped accepting|unloading"
)
REFUSED = re.compile(
    r"\bmust (be|have|come)\b|is allowed|is no such|not supported|has no chat template|\bcan't\b|unexpected"
    r" .*input|model expects"
)


def from_grpc(error: grpc.RpcError) -> GaplessError:
    """What ended a connection."""
    return KINDS.get(error.code(), FailedError)(error.details() or error.code().name)


def from_text(said: str) -> GaplessError:
    """What ended a request, without the name of the ensemble that Triton puts before it."""
    message = re.sub(r"^in ensemble '\w+', ", "", said)
    for pattern, kind in ((UNAVAILABLE, UnavailableError), (REFUSED, RefusedError)):
        if pattern.search(message):
            return kind(message)
    return FailedError(message)
