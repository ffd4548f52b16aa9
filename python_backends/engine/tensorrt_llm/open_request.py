"""One request under way in an engine that plans its own steps: from the engine's responses to its tokens, and
its present state.

The request loop is the only writer; what goes to the instance's thread is immutable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from python_backends.nouns.request import Finish, Sampling
from python_backends.nouns.step import Release, SlotFailure

ENDS = {"stop": Finish.STOP, "length": Finish.LENGTH}


@dataclass(frozen=True, slots=True)
class Response:
    """What one response of the engine brings for one request."""

    tokens: list[int]
    scores: list[Any]  # of these tokens; empty if they were not asked for
    is_last: bool
    reason: str = ""  # why it ended: stop, length or another word of the engine
    stop_id: int = -1  # the id that ended it; −1: the engine doesn't say which


@dataclass(frozen=True, slots=True)
class Token:
    slot: int
    slot_generation: int
    token: int
    finish: Finish
    num_top: int = 0
    score: Any = None  # as the engine gives it; None: not asked for


News = Token | SlotFailure | Release


@dataclass(slots=True, eq=False)
class Row:
    """One request, from its submission until the engine has let go of it."""

    slot: int
    slot_generation: int
    sampling: Sampling
    num_output: int
    heard_s: float  # when the engine last said something of it
    result: Any = None
    task: Any = None
    has_spoken: bool = False  # the engine has said something of it
    has_ended: bool = False  # its last token or its failure has been handed over
    is_released: bool = False  # by the slot scheduler, and aborted: its tokens are not wanted any more
    is_gone: bool = False  # we have stopped listening

    def tokens(self, response: Response) -> Iterator[Token]:
        """Its new tokens up to and with the one that ends it."""
        ids = self._with_stop_id(response)
        ends = ENDS.get(response.reason, Finish.RUNNING) if response.is_last else Finish.RUNNING
        scores = response.scores if self.sampling.log_probs else []
        for i, token in enumerate(ids):
            self.num_output += 1
            finish = self._finish(token) or (ends if i == len(ids) - 1 else Finish.RUNNING)
            score = scores[i] if i < len(scores) else None
            yield Token(
                self.slot, self.slot_generation, token, finish, self.sampling.num_top_log_probs, score
            )
            if finish != Finish.RUNNING:
                self.has_ended = True
                return

    def _with_stop_id(self, response: Response) -> list[int]:
        """Some engines leave the id that ended the answer out of its
        tokens; streams have it as their last.
        """
        ids, stop_ids = response.tokens, self.sampling.stop_ids
        if not response.is_last or response.reason != "stop" or not stop_ids or (ids and ids[-1] in stop_ids):
            return ids
        return [*ids, response.stop_id if response.stop_id >= 0 else stop_ids[0]]

    def _finish(self, token: int) -> Finish:
        if token in self.sampling.stop_ids and self.num_output > self.sampling.min_tokens:
            return Finish.STOP
        return Finish.LENGTH if self.num_output >= self.sampling.max_tokens else Finish.RUNNING
