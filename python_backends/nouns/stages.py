"""When the length of an answer is predicted from hidden states, and which of them are read for that.

The first stage is the end of the prompt; the others are reached while the answer is written. A stage is named
by the tokens of the answer that it has seen. One state is read at the prompt's end and one after each
`READ_EVERY` tokens, in the step that computes the last of them, so that neither an engine nor an instance has
anything to keep.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids

PROMPT_END = 0  # tokens
WRITTEN = (128, 256, 512, 1024)  # tokens, each a multiple of READ_EVERY
STAGES = (PROMPT_END, *WRITTEN)
READ_EVERY = 32  # tokens

NEVER = np.int32(2**30)  # tokens: longer than an answer gets


def is_read(num_written: Ids) -> NDArray[np.bool_]:
    """[n] whether a hidden state is read of answers with this many tokens [n]."""
    read: NDArray[np.bool_] = (num_written % READ_EVERY == 0) & (num_written <= WRITTEN[-1])
    return read


def until_read(num_written: Ids) -> int:
    """How many tokens the first of the answers with this many tokens [n] gets before one of its hidden states
    is read; 0: that is now.
    """
    ahead = np.where(num_written <= WRITTEN[-1], -num_written % READ_EVERY, NEVER)
    return int(ahead.min(initial=NEVER))


def name_of(stage: int) -> str:
    """As statistics call it."""
    return str(stage) if stage else "prompt"
