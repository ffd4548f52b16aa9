"""The hidden states of one answer that have been read, for the stages at which its length is predicted.

Kept with its stream, so that they outlast moves, evictions and the death of an instance: what is computed
again after that is not counted again. Used by the scheduler model.
"""

from __future__ import annotations

from python_backends.nouns.request import Floats
from python_backends.nouns.stages import PROMPT_END, READ_EVERY, WRITTEN


class ReadStates:
    def __init__(self) -> None:
        self.at_prompt_end: Floats | None = None  # [hidden]
        self._sum: Floats | None = None  # [hidden] of those read while it was written
        self._num_written = 0  # tokens, at the newest of them

    def add(self, num_written: int, state: Floats) -> Floats | None:
        """Takes the `state` [hidden] after so many tokens. Returns what is predicted from if that is a stage:
        the state at the prompt's end, or the mean of those since. None: it is no stage, or one of them is
        missing, as when the stream itself began in the middle of its answer.
        """
        if num_written == PROMPT_END:
            self.at_prompt_end = state.copy()  # not the whole message
            return self.at_prompt_end
        if self.at_prompt_end is None or num_written != self._num_written + READ_EVERY:
            return None
        self._num_written = num_written
        self._sum = state.copy() if self._sum is None else self._sum + state
        return self._sum / (num_written // READ_EVERY) if num_written in WRITTEN else None
