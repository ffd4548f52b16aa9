"""What the toy engine answers, worked out without its KV blocks."""

from __future__ import annotations

import numpy as np

from python_backends.nouns.request import Ids, Sampling
from tests.support.toy_engine import toy_next


def toy_answer(prompt: Ids, sampling: Sampling, vocab_size: int) -> list[int]:
    """The whole answer to `prompt`, as any undisturbed run gives it."""
    tokens = [int(token) for token in prompt]
    while len(tokens) < len(prompt) + sampling.max_tokens:
        num_output = len(tokens) - len(prompt)
        tokens.append(toy_next(np.array(tokens, np.int32), sampling, num_output, vocab_size))
        if tokens[-1] in sampling.stop_ids and num_output + 1 > sampling.min_tokens:
            break
    return tokens[len(prompt) :]
