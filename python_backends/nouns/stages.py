"""When the length of an answer is predicted, and which hidden states are read for that.

The stages follow each other: the request has come, its prompt is computed, so many tokens of its answer are
written. Each knows more than those before it. A hidden state is read at the prompt's end and after each
`READ_EVERY` tokens, in the step that computes the last of them, so that neither an engine nor an instance has
anything to keep.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids

TEXT = -1  # the request has come
PROMPT_END = 0
WRITTEN = (128, 256, 512, 1024)  # tokens of the answer, each a multiple of READ_EVERY
STAGES = (TEXT, PROMPT_END, *WRITTEN)
OF_STATES = STAGES[1:]
READ_EVERY = 32  # tokens

_NEVER = np.int32(2**30)  # tokens: longer than an answer gets


def is_read(num_written: Ids) -> NDArray[np.bool_]:
    """[n] whether a hidden state is read of answers with this many tokens [n]."""
    read: NDArray[np.bool_] = (num_written % READ_EVERY == 0) & (num_written <= WRITTEN[-1])
    return read


def until_read(num_written: Ids) -> int:
    """How many tokens the first of the answers with this many tokens [n] gets before one of its hidden states
    is read; 0: that is now.
    """
    ahead = np.where(num_written <= WRITTEN[-1], -num_written % READ_EVERY, _NEVER)
    return int(ahead.min(initial=_NEVER))


def name_of(stage: int) -> str:
    """As statistics call it."""
    return {TEXT: "text", PROMPT_END: "prompt"}.get(stage, str(stage))
