"""A mini-batch that is computed: its packs one after the other, each with a forward pass, the loss and a
backward pass. Before each pack it waits until there is memory for it.

Owned by the trainer of a job.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from python_backends.engine.protocol import AdapterInTraining, PackInTraining
from python_backends.finetuning.cursor import PackCursor
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.pack_memory import PackMemory, Plans
from python_backends.finetuning.packs import packs
from python_backends.finetuning.pieces import Kind, Piece
from python_backends.finetuning.pruning import first_layer
from python_backends.nouns.asks import Targeted
from python_backends.nouns.training import Pack


class MiniBatch:
    """`do` and `begin_pack` change it. `loss` is that of its tokens so far."""

    def __init__(
        self,
        adapter: AdapterInTraining,
        memory: PackMemory,
        examples: Sequence[Example | Targeted],
        learns: bool = True,
        is_sum: bool = False,
    ) -> None:
        """Without `learns` it has a loss and no backward pass. `is_sum`: the loss is a sum over labels, not a
        mean.
        """
        self._adapter, self._memory, self._examples = adapter, memory, examples
        self._learns, self._is_sum = learns, is_sum
        self._packs: list[Pack] = list(packs(examples, memory.pack_tokens))
        self._plans: Plans | None = None  # None: there was no memory for any pack yet
        self._number = 0  # of the pack that is computed, or waits for memory
        self._computed: tuple[PackInTraining, PackCursor] | None = None  # None: it has no memory yet
        self._waits = False  # for memory that requests hold
        self.loss = 0.0
        self._log_probs: list[NDArray[np.float32]] = []  # of the packs so far

    @property
    def tokens(self) -> int:
        return sum(len(pack.tokens) for pack in self._packs)

    @property
    def log_probs(self) -> NDArray[np.float32]:
        """[tokens] of the labels of all examples, when all packs are done; 0 where there is no label."""
        return np.concatenate(self._log_probs)

    @property
    def begun_tokens(self) -> int:
        """Of the packs so far."""
        return sum(len(pack.tokens) for pack in self._packs[: self._number + 1])

    @property
    def piece(self) -> Piece:
        """What comes next; CLIP or MEASURED after the last pack."""
        if self._number == len(self._packs):
            return Piece(Kind.CLIP if self._learns else Kind.MEASURED)
        if self._computed is None:
            return Piece(Kind.MEMORY if self._waits else Kind.PACK)
        pack, (_, cursor) = self._packs[self._number], self._computed
        if not cursor.is_forward_done:
            return Piece(Kind.FORWARD, pack, cursor.forward_first, len(pack.tokens))
        if not cursor.is_loss_done:
            return Piece(Kind.LOSS, pack, cursor.loss_first, len(pack.tokens))
        return Piece(Kind.BACKWARD, pack, 0, cursor.backward_last)

    def begin_pack(self) -> None:
        """If there is memory for it now. JobError if there never is."""
        self._waits = True
        if self._plans is None:
            self._plans = self._fitting_plans()
        if self._plans is None:
            return
        pack = self._packs[self._number]
        num_labels = 1 if self._is_sum else sum(pack.num_labels for pack in self._packs)
        computed = self._memory.begin(pack, self._plans, num_labels)
        if computed is not None:
            num_layers = len(self._adapter.facts)
            first = first_layer(self._adapter.targets) if self._learns else num_layers
            self._waits = False
            self._computed = computed, PackCursor(len(pack.tokens), num_layers, first)

    def do(self, tokens: int) -> None:
        """The next piece of the pack that is computed, of at most `tokens` tokens. RevokedError if requests
        took its memory.
        """
        try:
            self._memory.check()
            is_done = self._compute(tokens)
        except BaseException:
            self._memory.end()
            raise
        if is_done:
            self._memory.end()
            self._number, self._computed = self._number + 1, None

    def _fitting_plans(self) -> Plans | None:
        """For packs that are made smaller until they fit; None: there is no memory now."""
        while (plans := self._memory.plans_for(self._packs)) is None:
            if not self._memory.shrink_if_too_large(self._packs):
                return None
            self._packs = list(packs(self._examples, self._memory.pack_tokens))
        self._adapter.install(plans)
        return plans

    def _compute(self, tokens: int) -> bool:
        """Whether the pack is done."""
        assert self._computed is not None
        pack, cursor = self._computed
        if not cursor.is_forward_done:
            pack.forward(cursor.take_forward(tokens))
        elif not cursor.is_loss_done:
            self.loss += pack.loss(*cursor.take_loss(tokens))
        else:
            pack.backward(cursor.take_backward(tokens))
        if cursor.is_done:
            self._log_probs.append(pack.log_probs)
        return cursor.is_done
