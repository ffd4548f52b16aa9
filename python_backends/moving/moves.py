"""The moves of one instance, which may be source and destination of several at the same time. Called by its
loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from python_backends.moving.copier import Copier
from python_backends.moving.copies import Copied
from python_backends.moving.destination import Destination
from python_backends.moving.source import Source
from python_backends.nouns.messages import FromInstance
from python_backends.nouns.moves import AbortMove, MoveOut, Nak, Reserve, Resume
from python_backends.scheduling.slot_scheduler import SlotScheduler


class Moves:
    def __init__(
        self,
        scheduler: SlotScheduler,
        copier: Copier,
        steps_ahead: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handover = scheduler.handover
        self._copier = copier
        self._source = Source(scheduler, copier, clock)
        self._destination = Destination(scheduler, copier, not steps_ahead, clock)
        self._num_counted_bytes = 0

    @property
    def is_active(self) -> bool:
        """Whether a move is under way, so that `step` has something to do."""
        return self._source.is_active or self._destination.is_active

    @property
    def has_news(self) -> bool:
        """Whether `step` would take something that has come."""
        return self.is_active and self._copier.has_news

    def handle(self, message: Reserve | MoveOut | AbortMove | Resume) -> list[FromInstance]:
        """What the scheduler model says. Returns what it is told."""
        if isinstance(message, Reserve):
            return self._destination.reserve(message)
        if isinstance(message, MoveOut):
            return self._source.move_out(message)
        if isinstance(message, Resume):
            return self._source.resume(message)
        self._source.abort(message.move)
        self._destination.abort(message.move)
        return []

    def step(self) -> list[FromInstance]:
        """Takes what the other instances have sent, and what was copied. Once a turn, before the next plan,
        while `is_active`.
        """
        messages: list[FromInstance] = []
        for news in self._copier.received():
            if isinstance(news, Copied | Nak):
                messages += self._source.handle(news)
            else:
                messages += self._destination.handle(news)
        return [*messages, *self._source.check(), *self._destination.check()]

    def take_sent_bytes(self) -> int:
        """How many bytes of KV blocks were sent to other instances since the last call."""
        before, self._num_counted_bytes = self._num_counted_bytes, self._copier.num_sent_bytes
        return self._num_counted_bytes - before

    def new_session(self) -> None:
        """Drops all that is reserved or copied; the loop ends all requests, those that are suspended, too."""
        self._copier.forget_all()
        self._source.abandon_all()
        self._destination.abandon_all()
        self._handover.abandon_all()
