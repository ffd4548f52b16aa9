"""A stream table with a clock that the tests turn, and what came out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from python_backends.nouns.messages import Cancel, Submit
from python_backends.nouns.request import Feedback, Finish, Request, Sampling, TokenWindow
from python_backends.nouns.step import Started, Tokens
from python_backends.settings import StreamSettings
from python_backends.streams.outgoing import Outgoing
from python_backends.streams.table import FAILED_INSIDE, StreamTable
from python_backends.watching.metrics import Metrics

MS = 1_000_000


@dataclass
class House:
    """A stream table, a clock that we turn, and what came out of the table so far."""

    options: dict[str, Any] = field(default_factory=dict)
    now_ns: int = 1_000_000_000

    def __post_init__(self) -> None:
        settings = StreamSettings(**self.options)
        self.metrics = Metrics()
        self.table = StreamTable(
            settings,
            lambda: self.now_ns,
            lambda words: max([len(w) for w in words], default=0) + 4,
            self.metrics,
        )
        self.sent: dict[Any, list[Outgoing]] = {}
        self.submitted: list[Submit] = []
        self.cancelled: list[int] = []

    def accept(self, number: int, **options: Any) -> bool:
        sampling = Sampling(max_tokens=options.pop("max_tokens", 100), **options.pop("sampling", {}))
        options = {"stream": True, "arrival_ns": self.now_ns, **options}
        refusal = self.table.accept(
            Request(number, np.arange(3, dtype=np.int32), sampling, **options), sender=number
        )
        self.turn()
        return not refusal

    def turn(self, ms: float = 0.0) -> None:
        self.now_ns += int(ms * MS)
        self.post()
        for outgoing in self.table.due():
            assert outgoing.error != FAILED_INSIDE
            self.sent.setdefault(outgoing.sender, []).append(outgoing)
            if not outgoing.final:
                self.table.handed_over(outgoing, self.now_ns)
        self.post()

    def post(self) -> None:
        for message in self.table.outbox().get(0, []):
            if isinstance(message, Cancel):
                self.cancelled.append(message.request_id)
            else:
                self.submitted.append(message)

    def tokens(self, *rows: tuple[int, int, int, int, Finish]) -> None:
        """Rows of (request, epoch, index, token, finish)."""
        columns = list(zip(*rows, strict=True))
        kinds = (np.int64, np.int32, np.int32, np.int32, np.uint8)
        self.table.tokens(
            Tokens(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))
        )

    def start(self, number: int, epoch: int = 0) -> None:
        self.table.started(Started(number, epoch, 0))

    def windows(self, number: int) -> list[TokenWindow]:
        return [outgoing.window for outgoing in self.sent.get(number, []) if outgoing.window is not None]

    def received(self, number: int) -> list[int]:
        """The tokens as a reader of the windows puts them together."""
        tokens: list[int] = []
        for window in self.windows(number):
            assert window.start <= window.num_sent == len(tokens) or window.start == 0
            tokens = tokens[: window.num_sent] + window.tokens[window.num_sent - window.start :].tolist()
        return tokens

    def finals(self, number: int) -> int:
        return sum(outgoing.final for outgoing in self.sent.get(number, []))


def running(number: int = 1, **options: Any) -> House:
    house = House(options)
    house.table.instance_ready(0)
    house.accept(number)
    house.start(number)
    return house


def crowd(*numbers: int, **options: Any) -> House:
    """Streams that have each got their first token, all confirmed."""
    house = House(options)
    house.table.instance_ready(0)
    for number in numbers:
        house.accept(number)
        house.tokens((number, 0, 0, 50, Finish.RUNNING))
        house.turn(ms=1)
    for number in numbers:
        house.table.feedback(Feedback(number, 1))
    house.turn()
    return house


def waiting_for_company() -> House:
    """The second token of its stream waits, for 40 ms at most."""
    house = running()
    house.table.delivery.interval_s = 0.040
    for index in range(2):
        house.tokens((1, 0, index, 50 + index, Finish.RUNNING))
        house.turn()
    assert house.received(1) == [50]
    return house


def crash(house: House) -> None:
    house.table.instance_lost(0)
    house.turn()
    house.table.instance_ready(0)
    house.turn()
