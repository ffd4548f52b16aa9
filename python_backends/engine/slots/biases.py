"""What requests add to the logits of some tokens, by slot, on the device.

Owns ids and values of all slots: written when a sequence takes a slot whose request asks for it, so a
sequence that begins again elsewhere has the same. Called by the sampling state; the sampler adds them before
all else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.device import to_device
from python_backends.nouns.request import ModelLimits


@dataclass(frozen=True, slots=True)
class Biases:
    rows: Tensor  # [biased] of the batch
    ids: Tensor  # [biased, most] after a row's last one 0
    values: Tensor  # [biased, most] float32; after a row's last one 0


class SlotBiases:
    def __init__(self, limits: ModelLimits, device: torch.device) -> None:
        self._vocab_size = limits.vocab_size
        self._ids = torch.zeros((limits.num_slots, 1), dtype=torch.int64, device=device)
        self._values = torch.zeros((limits.num_slots, 1), dtype=torch.float32, device=device)

    def admit(self, slots: Tensor, biases: list[tuple[tuple[int, float], ...]]) -> None:
        """`biases` [slots]; those of tokens that only the tokenizer knows are left out."""
        biases = [tuple(bias for bias in each if bias[0] < self._vocab_size) for each in biases]
        missing = max(map(len, biases)) - self._ids.shape[1]
        if missing > 0:
            self._ids = functional.pad(self._ids, (0, missing))
            self._values = functional.pad(self._values, (0, missing))
        ids = np.zeros((len(biases), self._ids.shape[1]), np.int64)
        values = np.zeros(ids.shape, np.float32)
        for row, each in enumerate(biases):
            if each:
                ids[row, : len(each)], values[row, : len(each)] = zip(*each, strict=True)
        self._ids[slots] = to_device(ids, self._ids.device)
        self._values[slots] = to_device(values, self._values.device)

    def of(self, rows: Tensor, slots: Tensor) -> Biases:
        """Those of `slots` [biased], which are the `rows` [biased] of a batch."""
        return Biases(rows, self._ids[slots], self._values[slots])


def biased(logits: Tensor, biases: Biases) -> Tensor:
    """A copy of `logits` [rows, vocabulary] in float32. Ids of one row differ, but for its zeros."""
    logits = logits.float()
    some = logits[biases.rows].scatter_add_(1, biases.ids, biases.values)
    return logits.index_copy(0, biases.rows, some)
