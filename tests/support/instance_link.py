"""What an instance's loop reads and writes, without a scheduler model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from python_backends.nouns.load import Load
from python_backends.nouns.messages import Submit
from python_backends.nouns.request import Request, Sampling
from python_backends.nouns.step import Tokens


class Link:
    """Gives the loop `inbox`, a list at a time, and keeps what it publishes."""

    def __init__(self, inbox: Sequence[list[Any]]) -> None:
        self.inbox = list(inbox)
        self.published: list[Any] = []
        self.loads: list[Load] = []
        self.answers: dict[int, list[int]] = {}
        self.num_ended = 0

    def receive(self, timeout_s: float) -> list[Any]:
        return self.inbox.pop(0) if self.inbox else []

    def publish(self, messages: Sequence[Any]) -> None:
        self.published += messages
        self.loads += [message for message in messages if isinstance(message, Load)]
        for tokens in [message for message in messages if isinstance(message, Tokens)]:
            for request_id, token in zip(tokens.request_ids.tolist(), tokens.tokens.tolist(), strict=True):
                self.answers.setdefault(request_id, []).append(token)
            self.num_ended += int(np.count_nonzero(tokens.finishes))


def submit(number: int, length: int, **sampling: Any) -> Submit:
    prompt = np.arange(number, number + length, dtype=np.int32)
    return Submit(Request(number, prompt, Sampling(**sampling)), np.zeros(0, np.int32), 0)
