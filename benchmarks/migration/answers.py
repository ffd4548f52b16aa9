"""Requests and their moves, as `migration` sees them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Finish
from python_backends.streams.stream import Stream


@dataclass(slots=True, eq=False)
class Answer:
    """One request as the benchmark sees it."""

    stream: Stream
    times_s: list[float] = field(default_factory=list)  # when each token came

    @property
    def gaps_s(self) -> NDArray[np.float64]:
        return np.diff(self.times_s)

    def has_ended(self) -> bool:
        return self.stream.finish != Finish.RUNNING

    @property
    def num_tokens(self) -> int:
        """Of prompt and output."""
        return len(self.stream.request.prompt) + len(self.stream.tokens)


@dataclass(frozen=True, slots=True)
class Moved:
    """One attempt to move a request. All times are seconds of one clock; those that there are not are NaN."""

    way: str
    num_tokens: int  # that the request had when it began
    outcome: str
    place: int  # of the gap at the move, among the gaps of its answer
    began_s: float
    last_s: float  # when its last token of the source came
    suspended_s: float
    adopted_s: float
    next_s: float  # when its first token of the destination came

    @property
    def gap_s(self) -> float:
        return self.next_s - self.last_s
