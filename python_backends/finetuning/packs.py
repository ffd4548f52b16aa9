"""The order of examples, their mini-batches, and the packs of a mini-batch: flat tokens of several sequences.

The order is a permutation that depends on seed and pass alone, so that a job that starts again finds its
place. A mini-batch does not cross passes; the last one of a pass may be smaller. Called by the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from python_backends.finetuning.datasets import Example
from python_backends.nouns.asks import Targeted
from python_backends.nouns.training import Pack


@lru_cache(maxsize=4)  # a million examples take 20 ms, which is too long for each step
def order(num_examples: int, seed: int, pass_number: int) -> NDArray[np.int64]:
    """The permutation [examples] of one pass over the data."""
    return np.random.default_rng([seed, pass_number]).permutation(num_examples)


def steps_a_pass(num_examples: int, batch_size: int) -> int:
    return -(-num_examples // batch_size)


def mini_batch(num_examples: int, batch_size: int, seed: int, step: int) -> NDArray[np.int64]:
    """The examples of optimiser step `step`, counted from 0 over all passes."""
    pass_number, index = divmod(step, steps_a_pass(num_examples, batch_size))
    return order(num_examples, seed, pass_number)[index * batch_size : (index + 1) * batch_size]


def packs(examples: Sequence[Example | Targeted], pack_tokens: int) -> Iterator[Pack]:
    """The examples in order, as many in a pack as `pack_tokens` allow; a longer one is a pack by itself."""
    taken: list[Example | Targeted] = []
    for example in examples:
        if taken and sum(len(each.ids) for each in taken) + len(example.ids) > pack_tokens:
            yield packed(taken)
            taken = []
        taken.append(example)
    if taken:
        yield packed(taken)


def packed(examples: Sequence[Example | Targeted]) -> Pack:
    lengths = [len(example.ids) for example in examples]
    bounds = (0, *np.cumsum(lengths).tolist())
    return Pack(
        np.concatenate([example.ids for example in examples]),
        np.concatenate([example.labels for example in examples]),
        bounds,
        _joined([example.weights for example in examples]),
        _joined([example.drawn_log_probs for example in examples]),
    )


def _joined(parts: Sequence[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    """All examples of a mini-batch have them, or none."""
    return None if parts[0] is None else np.concatenate([part for part in parts if part is not None])
