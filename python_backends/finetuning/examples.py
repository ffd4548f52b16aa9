"""The examples of a job as they lie on the disk: flat arrays, so that reading a million of them makes no
million objects. Read by the thread that finds jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from python_backends.finetuning.datasets import Example
from python_backends.finetuning.files import read_arrays
from python_backends.nouns.request import Ids

FILE, HELD_OUT = "examples.safetensors", "held_out.safetensors"


class Examples:
    """Example i has tokens [bounds[i], bounds[i + 1])."""

    def __init__(self, ids: Ids, learned: NDArray[Any], bounds: NDArray[Any]) -> None:
        """ValueError if the arrays don't fit together."""
        lengths = np.diff(bounds)
        if not len(lengths) or bounds[0] != 0 or bounds[-1] != len(ids) or lengths.min() < 1:
            raise ValueError(f"{FILE}: bounds must go from 0 to {len(ids)}, the number of tokens, and rise")
        if ids.dtype != np.int32 or learned.shape != ids.shape:
            raise ValueError(f"{FILE}: ids must be of int32, and each needs a number in learned")
        self._ids, self._learned, self._bounds, self._lengths = ids, learned, bounds, lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> Example:
        tokens = slice(self._bounds[index], self._bounds[index + 1])
        return Example(self._ids[tokens], self._learned[tokens] != 0)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    @property
    def longest(self) -> int:
        """Its index."""
        return int(np.argmax(self._lengths))

    def check(self, most_tokens: int, vocabulary: int) -> None:
        """ValueError names the first example that a server can't take."""
        too_long = np.flatnonzero(self._lengths > most_tokens)
        if len(too_long):
            first = int(too_long[0])
            raise ValueError(
                f"example {first + 1} has {self._lengths[first]} tokens; the server takes {most_tokens}"
                " (model.max_model_tokens)"
            )
        if not 0 <= self._ids.min() <= self._ids.max() < vocabulary:
            wrong = int(np.argmax((self._ids < 0) | (self._ids >= vocabulary)))
            number = int(np.searchsorted(self._bounds, wrong, "right"))
            raise ValueError(f"example {number} has tokens outside of the vocabulary of {vocabulary}")


def read(path: Path) -> Examples:
    """Raises OSError and ValueError."""
    arrays = read_arrays(path)
    missing = {"ids", "learned", "bounds"} - arrays.keys()
    if missing:
        raise ValueError(f"{path.name}: it has no {', '.join(sorted(missing))}")
    return Examples(arrays["ids"], arrays["learned"], arrays["bounds"])


def write(path: Path, examples: list[Example]) -> None:
    arrays = {
        "ids": np.concatenate([example.ids for example in examples]),
        "learned": np.concatenate([example.learned for example in examples]).astype(np.uint8),
        "bounds": np.cumsum([0, *(len(example.ids) for example in examples)]),
    }
    save_file(arrays, path)
