"""The fields of a correction, and the line of training data that they become."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from front.errors import refused

GOOD, BAD = "good", "bad"
MOST_BYTES = 1 << 16  # of a line


class Turn(Struct):
    role: str
    content: str


class CorrectionAsk(Struct, kw_only=True):
    messages: list[Turn] | None = None
    prompt: str | None = None
    correction: str | None = None
    rating: str | None = None
    id: str | None = None


def example_of(ask: CorrectionAsk) -> tuple[Any, dict[str, Any]]:
    """Returns the prompt, and the example with the answer that is learned. Raises ProblemError."""
    if ask.id is not None:
        raise refused("id", ": the texts of requests are not kept; send messages, or prompt")
    if (ask.messages is None) == (ask.prompt is None):
        raise refused("prompt", ", messages: exactly one of them must be given")
    _check_rating(ask)
    if ask.messages is None:
        return ask.prompt, {"prompt": ask.prompt, "completion": ask.correction}
    turns = ask.messages
    is_answered = bool(turns) and turns[-1].role == "assistant"
    if ask.correction is None and not is_answered:
        raise refused("messages", ": with rating = good the last one must be the assistant's")
    answer = turns[-1].content if ask.correction is None else ask.correction
    prompt = [_plain(turn) for turn in (turns[:-1] if is_answered else turns)]
    return prompt, {"messages": [*prompt, {"role": "assistant", "content": answer}]}


def _check_rating(ask: CorrectionAsk) -> None:
    """A bad answer without a better one teaches nothing. Raises ProblemError."""
    if ask.rating not in (None, GOOD, BAD):
        raise refused("rating", f" = {ask.rating[:40]!r}: must be {GOOD} or {BAD}")
    if (ask.correction is None) != (ask.rating == GOOD):
        raise refused("correction", f": must be given, or rating = {GOOD} in its place")
    if ask.rating == GOOD and ask.messages is None:
        raise refused("rating", f" = {GOOD}: must come with messages, of which the last one is the answer")


def _plain(turn: Turn) -> dict[str, Any]:
    """Earlier answers are not learned."""
    plain: dict[str, Any] = {"role": turn.role, "content": turn.content}
    return {**plain, "weight": 0} if turn.role == "assistant" else plain
