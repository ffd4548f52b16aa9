"""What is known of the request that is answered: for its line in the log and for metrics. Never its text.

All that works for a request finds its record by `current()`, in tasks that it starts, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from client.wire import Piece

TRACE = "traceparent"  # W3C's header, and Triton's metadata


@dataclass(slots=True)
class Record:
    """One request over HTTP. Times are seconds of the monotonic clock."""

    request_id: str = ""
    trace: str = ""  # its caller's: the header TRACE; empty: it has none
    route: str = ""
    method: str = ""
    began_s: float = field(default_factory=time.monotonic)
    status: int = 0  # 0: nothing was sent
    is_whole: bool = False  # its answer was sent to the end
    first_token_s: float = 0.0  # 0: none came
    prompts: dict[int, tuple[int, int]] = field(default_factory=dict)  # tokens, and of these cached ones
    num_output_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)  # of its choices
    gap: Callable[[float, int], object] = lambda _seconds, _tokens: None  # told of the time between pieces

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(tokens for tokens, _ in self.prompts.values())

    def came(self, prompt: int, piece: Piece, last_s: float) -> float:
        """A piece came of an answer to the prompt of this number; the answer's last piece with tokens came at
        `last_s` (0: none did). Returns when the last one with tokens came.
        """
        now_s, num_tokens = time.monotonic(), piece.num_output_tokens or 0
        # another answer finds more in the cache: what the first one left there
        self.prompts.setdefault(prompt, (piece.num_input_tokens or 0, piece.num_cached_tokens or 0))
        self.num_output_tokens += num_tokens
        if piece.finish_reason:
            self.finish_reasons.append(piece.finish_reason)
        if not num_tokens:
            return last_s
        self.first_token_s = self.first_token_s or now_s
        if last_s:
            self.gap(now_s - last_s, num_tokens)
        return now_s

    def line(self) -> dict[str, Any]:
        """What the log says of it when it has ended."""
        now_s = time.monotonic()
        said = {
            "request_id": self.request_id,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "seconds": round(now_s - self.began_s, 3),
        }
        if not self.is_whole:
            said["left"] = True
        if self.num_prompt_tokens:
            said |= {
                "first_token_s": round(self.first_token_s - self.began_s, 3) if self.first_token_s else None,
                "prompt_tokens": self.num_prompt_tokens,
                "cached_tokens": sum(cached for _, cached in self.prompts.values()),
                "output_tokens": self.num_output_tokens,
                "finish": self.finish_reasons,
            }
        return said


CURRENT: ContextVar[Record] = ContextVar("record")


def current() -> Record:
    """Returns the record of the request that this task works for; a new one if it works for none."""
    try:
        return CURRENT.get()
    except LookupError:
        CURRENT.set(record := Record())
        return record
