"""The errors that a client raises.

GaplessError
├── RefusedError       the request is wrong: the message names the field, the value and the limit
├── UnavailableError   no server, too many open requests, shutting down, or the server was lost during
│                      the answer: a later attempt may succeed, from the beginning
├── TimedOutError      not complete within the client's `timeout_s` (also a TimeoutError)
└── FailedError        the server could not answer, or the answer is incomplete
"""

from __future__ import annotations

import re

import grpc

from .channel import with_proxy


class GaplessError(Exception):
    """A request got no complete answer. `code` is the server's, for programs; empty where it gave none."""

    code = ""


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
# those of Gapless, which stand behind its messages
CODES: dict[str, type[GaplessError]] = {
    "invalid_value": RefusedError,
    "context_length_exceeded": RefusedError,
    "queue_full": UnavailableError,
    "shutting_down": UnavailableError,
    "failed": FailedError,
    "engine_failed": FailedError,  # whenever it ran this request
}
CODE = re.compile(r" \[([a-z_]+)\]$")
# Over gRPC streams Triton sends the text of a failed request without its code, so the kind of its own errors
# is read from the text. The header `triton_grpc_error` adds the code, but in 2.51 the second failure with it
# ends the whole server.
UNAVAILABLE = re.compile(
    r"not healthy|no available versions|is not ready|stopped accepting|unloading|unknown model"
)
REFUSED = re.compile(
    r"\bmust (be|have|come)\b|is allowed|is no such|not supported|has no chat template|\bcan't\b|unexpected"
    r" .*input|model expects"
)


def from_grpc(error: BaseException, url: str) -> GaplessError:
    """Returns the error for a connection to `url` that ended. `error`: gRPC's; any but its RpcError says that
    the client is closed.
    """
    if not isinstance(error, grpc.RpcError):
        return FailedError("the client is closed")
    said = error.details() or error.code().name
    return KINDS.get(error.code(), FailedError)(with_proxy(said, url))


def from_text(said: str) -> GaplessError:
    """Returns the error for a request that failed. Removes the name of the ensemble, which Triton puts before
    the text, and the code behind it.
    """
    message = re.sub(r"^in ensemble '\w+', ", "", said)
    if (found := CODE.search(message)) and found[1] in CODES:
        error = CODES[found[1]](message[: found.start()])
        error.code = found[1]
        return error
    for pattern, kind in ((UNAVAILABLE, UnavailableError), (REFUSED, RefusedError)):
        if pattern.search(message):
            return kind(message)
    return FailedError(message)
