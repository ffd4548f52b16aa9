"""A sequence: one request in this instance, with its tokens so far.
Changed only by the slot scheduler and its parts.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids, LengthPrediction, Request

NO_SLOT = -1
NO_BLOCKS: Ids = np.zeros(0, np.int32)


class Status(IntEnum):
    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    RESERVED = 3  # a slot is kept for it: it is about to move here


class Seating(NamedTuple):
    """The blocks that a waiting sequence would take if it got a slot."""

    blocks_now: int  # available blocks that it takes at once
    num_shared: int  # blocks of its prefix that other sequences hold as well
    num_held_once: int  # of these, those that one other alone holds


class Sequence:
    """One request and its present state.

    While it runs, its tokens and counts are in its row of the slot table, where a step changes them for all
    slots at once; `tokens` here are those that it had when it last got or lost a slot.
    """

    __slots__ = (
        *("arrival", "arrived_s", "blocks", "got_slot_s", "request_epoch", "keys", "num_evictions"),
        *("num_published", "prediction", "request", "reserved_blocks", "slot", "status", "tokens"),
    )

    def __init__(
        self, request: Request, delivered: Ids, arrival: float, request_epoch: int, arrived_s: float = 0.0
    ) -> None:
        self.request = request
        self.tokens: Ids = np.concatenate([request.prompt, delivered]).astype(np.int32)
        self.arrival = arrival  # place in the order of arrival, which the roster gives; kept when evicted
        self.arrived_s = arrived_s  # at its first instance, by the slot scheduler's clock
        self.got_slot_s = arrived_s  # the last time, by admission
        self.request_epoch = request_epoch  # as its stream counts it
        self.slot = NO_SLOT
        self.status = Status.WAITING
        self.blocks: Ids = NO_BLOCKS
        # of its leading full blocks, as far as computed; they stay valid, since tokens are only appended
        self.keys: list[bytes] = []
        self.num_evictions = 0  # here
        self.num_published = 0  # leading full blocks that other sequences can find
        self.reserved_blocks = 0
        self.prediction: LengthPrediction | None = None  # none has come yet

    @property
    def request_id(self) -> int:
        return self.request.request_id

    @property
    def root_key(self) -> bytes:
        """What the keys of its blocks begin with."""
        return self.request.adapter.root_key

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of its prompt are computed while it prefills: all of them, so that its
        whole prompt is. A client that has got a token of the answer has got them before.
        """
        return self.request.wants_prompt_log_probs and not self.num_output_tokens


def check_ids(request: Request, delivered: Ids, vocab_size: int) -> None:
    """Raises ValueError if a token id of the request is not in the vocabulary. Stop ids may be outside: no
    token is equal to them.
    """
    bad_words = np.array([token for word in request.sampling.bad_words for token in word], np.int64)
    biased = np.array([token for token, _ in request.sampling.logit_bias], np.int64)
    named: dict[str, NDArray[np.integer[Any]]] = {
        "the prompt": request.prompt,
        "the answer so far": delivered,
        "bad words": bad_words,
        "biased tokens": biased,
    }
    for name, ids in named.items():
        wrong = ids[(ids < 0) | (ids >= vocab_size)]
        if len(wrong):
            raise ValueError(f"token id {wrong[0]} in {name}: must be between 0 and {vocab_size - 1}")
