"""The hidden states of one answer that have been read, for the stages at which its length is predicted.

Kept with its stream, so that they outlast moves, evictions and the death of an instance: what is computed
again after that is not counted again, and what an instance says late is counted. Used by the scheduler model.
"""

from __future__ import annotations

from python_backends.nouns.request import Floats
from python_backends.nouns.stages import PROMPT_END, READ_EVERY, WRITTEN


class ReadStates:
    def __init__(self) -> None:
        self._sum: Floats | None = None  # [hidden] of those read while it was written
        self._counted: set[int] = set()  # after how many tokens these were

    def add(self, num_written: int, state: Floats) -> Floats | None:
        """Takes the `state` [hidden] after so many tokens. Returns what is predicted from if that is a stage:
        the state at the prompt's end, or the mean of those since. None: it is no stage, or one of them is
        missing, as when the stream itself began in the middle of its answer.
        """
        if num_written == PROMPT_END:
            return state.copy()  # not the whole message
        if num_written in self._counted:
            return None
        self._counted.add(num_written)
        self._sum = state.copy() if self._sum is None else self._sum + state
        is_whole = num_written == max(self._counted) == len(self._counted) * READ_EVERY
        return self._sum / len(self._counted) if num_written in WRITTEN and is_whole else None
