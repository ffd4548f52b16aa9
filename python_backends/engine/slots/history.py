"""The tokens so far of the slots whose sampling looks back, on the device, and the words that must not be
completed there.

Owns one row of tokens a slot: written when a sequence takes the slot, from then on by `append`, so that
penalties and bad words rebuild exactly after a restart. While no slot looks back nothing is written. Called
by the slot state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from python_backends.engine.device import to_device
from python_backends.nouns.request import MAX_BAD_WORD_TOKENS, ModelLimits
from python_backends.nouns.step import Admit

NO_TOKEN = -1
BEFORE = -2  # is in the places before a sequence's first token; equal to no token and to no gap in a bad word


class TokenHistory:
    def __init__(self, limits: ModelLimits, device: torch.device) -> None:
        shape = (limits.num_slots, limits.max_model_tokens + 1)
        self._tokens = torch.zeros(shape, dtype=torch.int32, device=device)
        self._kept: NDArray[np.bool_] = np.zeros(limits.num_slots, np.bool_)  # slots that look back

    def admit(self, admits: Sequence[Admit]) -> None:
        """The tokens of all `admits` that look back, in one write."""
        self._kept[[admit.slot for admit in admits]] = [admit.sampling.looks_back for admit in admits]
        rows = [
            np.stack([np.full(len(admit.tokens), admit.slot), np.arange(len(admit.tokens)), admit.tokens])
            for admit in admits
            if admit.sampling.looks_back
        ]
        if rows:
            slots, positions, tokens = to_device(np.concatenate(rows, axis=1), self._tokens.device)
            self._tokens[slots, positions] = tokens.int()

    def release(self, slots: list[int]) -> None:
        self._kept[slots] = False

    @property
    def is_kept(self) -> bool:
        """Whether any slot looks back."""
        return bool(self._kept.any())

    def append(self, slots: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """`tokens` [rows] at `positions` [rows] of `slots` [rows]."""
        self._tokens[slots, positions] = tokens.int()

    def first(self, slots: Tensor, lengths: Tensor, width: int) -> Tensor:
        """[rows, width] the first tokens of `slots`; after their
        `lengths` [rows] the first one again and again.
        """
        tokens = self._tokens[slots, :width].long()
        places = torch.arange(width, device=tokens.device)
        return torch.where(places < lengths[:, None], tokens, tokens[:, :1])

    def last(self, slots: Tensor, lengths: Tensor, count: int) -> Tensor:
        """[rows, count] the last tokens of `slots`; BEFORE where there are fewer."""
        positions = lengths[:, None] + torch.arange(-count, 0, device=lengths.device)
        tokens = self._tokens[slots[:, None], positions.clamp(min=0)].long()
        return torch.where(positions >= 0, tokens, BEFORE)


class BadWords:
    """The bad words of each slot, up to MAX_BAD_WORD_TOKENS tokens each, with
    gaps of NO_TOKEN in front of the shorter ones.
    """

    def __init__(self, limits: ModelLimits, device: torch.device) -> None:
        self._vocab_size = limits.vocab_size
        shape = (limits.num_slots, 1, MAX_BAD_WORD_TOKENS)
        # [slots, most words, tokens]
        self._words = torch.full(shape, NO_TOKEN, dtype=torch.int64, device=device)

    def admit(self, slots: Tensor, words: list[tuple[tuple[int, ...], ...]]) -> None:
        """`words` [slots]; those with a token that only the tokenizer knows can't come anyway."""
        words = [tuple(word for word in each if max(word) < self._vocab_size) for each in words]
        missing = max(map(len, words)) - self._words.shape[1]
        if missing > 0:
            self._words = functional.pad(self._words, (0, 0, 0, missing), value=NO_TOKEN)
        rows = np.full((len(words), *self._words.shape[1:]), NO_TOKEN, np.int64)
        for row, each in zip(rows, words, strict=True):
            for place, word in zip(row, each, strict=False):
                place[-len(word) :] = word
        self._words[slots] = to_device(rows, self._words.device)

    def completing(self, slots: Tensor, history: TokenHistory, lengths: Tensor) -> Tensor:
        """[rows, most words] the token that would complete each bad word of
        `slots` now; NO_TOKEN where none would.
        """
        words = self._words[slots]
        before = history.last(slots, lengths, MAX_BAD_WORD_TOKENS - 1)[:, None]
        begun = ((words[..., :-1] == before) | (words[..., :-1] == NO_TOKEN)).all(-1)
        return torch.where(begun, words[..., -1], NO_TOKEN)
