"""The moves of one instance, which may be source and destination of several at the same time. Called by its
loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from python_backends.handover.destination import Destination
from python_backends.handover.source import Source
from python_backends.handover.transport import Transport
from python_backends.nouns.messages import FromInstance
from python_backends.nouns.moves import AbortMove, MoveOut, Nak, Reserve, Resume
from python_backends.scheduling.scheduler import SlotScheduler
from python_backends.wires.copies import Copied, HandedOver, LetGo, News


class Moves:
    """`is_active`: a move is under way, so `step` has something to do."""

    def __init__(
        self,
        scheduler: SlotScheduler,
        transport: Transport,
        max_rounds: int,
        steps_ahead: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_active = False
        self._scheduler = scheduler
        self._transport = transport
        self._source = Source(scheduler, transport, max_rounds, clock)
        self._destination = Destination(scheduler, transport, not steps_ahead, clock)
        self._num_counted_bytes = 0

    @property
    def has_news(self) -> bool:
        """Whether `step` would take something that has come."""
        return self.is_active and self._transport.has_news

    def take(self, message: Reserve | MoveOut | AbortMove | Resume) -> list[FromInstance]:
        """What the scheduler model says. Returns what it is told."""
        messages: list[FromInstance] = []
        if isinstance(message, Reserve):
            messages = self._destination.reserve(message)
        elif isinstance(message, MoveOut):
            messages = self._source.move_out(message)
        elif isinstance(message, Resume):
            messages = self._source.resume(message)
        else:
            self._source.abort(message.move)
            self._destination.abort(message.move)
        self._note_activity()
        return messages

    def step(self) -> list[FromInstance]:
        """Takes what the other instances have sent, and what was copied. Once a turn, before the next plan,
        while `is_active`.
        """
        messages: list[FromInstance] = []
        for news in self._transport.received():
            messages += self._take(news)
        messages += [*self._source.look(), *self._destination.look()]
        self._note_activity()
        return messages

    def take_sent_bytes(self) -> int:
        """How many bytes of KV blocks were sent to other instances since the last call."""
        before, self._num_counted_bytes = self._num_counted_bytes, self._transport.num_sent_bytes
        return self._num_counted_bytes - before

    def new_session(self) -> None:
        """Drops everything: reservations, what is copied, and what is held."""
        self._transport.forget_all()
        self._source.abandon_all()
        self._destination.abandon_all()
        self._scheduler.handover.abandon_all()
        self.is_active = False

    def _take(self, news: News) -> list[FromInstance]:
        if isinstance(news, Copied | HandedOver | Nak):
            return self._source.take(news)
        if isinstance(news, LetGo):
            self._source.take(news)
        return self._destination.take(news)

    def _note_activity(self) -> None:
        self.is_active = not (self._source.is_idle and self._destination.is_idle)
