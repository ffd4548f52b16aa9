"""The forest's input for a request: 21 numbers, as Magnus makes them (ICWS 2024, arXiv 2406.04785).

The embedding of the instruction is cut into 4 groups of neighbouring numbers, that of the user's input into
16; each group becomes its sum divided by the square root of its size. The input's length in tokens of the
served model comes last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Floats

INSTRUCTION_GROUPS, INPUT_GROUPS = 4, 16
NUM_FEATURES = INSTRUCTION_GROUPS + INPUT_GROUPS + 1


def compress(embeddings: Floats, num_groups: int) -> Floats:
    """[texts, dim] to [texts, num_groups]; dim must be a multiple of num_groups."""
    groups = embeddings.reshape(len(embeddings), num_groups, -1)
    return groups.sum(axis=2, dtype=np.float32) / np.float32(np.sqrt(groups.shape[2]))  # type: ignore[no-any-return]


def features(instructions: Floats, inputs: Floats, num_input_tokens: NDArray[np.int64]) -> Floats:
    """[requests, NUM_FEATURES] from both embeddings [requests, dim] and the inputs' lengths [requests]."""
    lengths = num_input_tokens.astype(np.float32)[:, None]
    return np.hstack([compress(instructions, INSTRUCTION_GROUPS), compress(inputs, INPUT_GROUPS), lengths])
