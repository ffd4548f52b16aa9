"""What an instance has to copy for the requests that move, by the number of their move. Called by the copier,
one thread at a time.

At most CREDITS messages with blocks are under way for one move: the destination acknowledges each as soon as
it has written it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from python_backends.moving.wire import Frame
from python_backends.nouns.moves import Ack, Blocks, Last, Nak
from python_backends.nouns.request import Ids

CREDITS = 4
NO_BLOCKS: Ids = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Copied:
    """The destination has written all blocks of a round."""

    move: int


@dataclass(frozen=True, slots=True, eq=False)
class Came:
    """Blocks, or the last ones, have come for a move that is expected here."""

    message: Blocks | Last
    sender: bytes
    payload: memoryview


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """The blocks of this message stand in the engine's memory."""

    message: Blocks | Last


News = Copied | Came | Written | Nak


@dataclass(frozen=True, slots=True, eq=False)
class Sending:
    """Blocks to be read and sent."""

    message: Blocks | Last
    to: str
    blocks: Ids  # [message.count]


@dataclass(frozen=True, slots=True, eq=False)
class Writing:
    """What has come, to be written to `blocks`; all but the last ones of a move are then acknowledged."""

    came: Came
    blocks: Ids  # [came.message.count]

    @property
    def message(self) -> Blocks | Last:
        return self.came.message


@dataclass(slots=True, eq=False)
class _Outgoing:
    to: str
    first: int = 0  # block number of the next block
    blocks: Ids = field(default_factory=lambda: NO_BLOCKS)  # of the round, not sent yet
    num_unacknowledged: int = 0
    heard_s: float = 0.0  # when the round began, or a message was acknowledged

    @property
    def may_send(self) -> bool:
        return len(self.blocks) > 0 and self.num_unacknowledged < CREDITS


@dataclass(slots=True, eq=False)
class _Incoming:
    sender: bytes = b""  # of its first message; others are not listened to
    num_unwritten: int = 0  # messages that have come


class Copies:
    """`drop` is called with the reason when a frame is dropped."""

    def __init__(self, drop: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._drop = drop
        self._clock = clock
        self._outgoing: dict[int, _Outgoing] = {}  # the next one to send is the first
        self._incoming: dict[int, _Incoming] = {}
        self._to_write: deque[Writing] = deque()  # as they came
        self._last: deque[Sending | Writing] = deque()  # the last blocks of moves

    @property
    def endpoints(self) -> set[str]:
        """Of the instances to which requests leave."""
        return {outgoing.to for outgoing in self._outgoing.values()}

    @property
    def moves(self) -> set[int]:
        return self._outgoing.keys() | self._incoming.keys()

    def heard_s(self, move: int) -> float:
        return self._outgoing[move].heard_s

    # --- what is to be done

    def copy_out(self, move: int, to: str, first: int, blocks: Ids) -> None:
        outgoing = self._outgoing.setdefault(move, _Outgoing(to))
        outgoing.first, outgoing.blocks, outgoing.heard_s = first, blocks, self._clock()

    def hand_over(self, to: str, last: Last, blocks: Ids) -> None:
        self._outgoing.setdefault(last.move, _Outgoing(to))
        self._last.append(Sending(last, to, blocks))

    def expect(self, move: int) -> None:
        self._incoming[move] = _Incoming()

    def write(self, came: Came, blocks: Ids) -> None:
        to_write = self._last if isinstance(came.message, Last) else self._to_write
        to_write.append(Writing(came, blocks))

    def sender(self, move: int) -> bytes:
        return self._incoming[move].sender

    def forget(self, move: int) -> None:
        self._outgoing.pop(move, None)
        self._incoming.pop(move, None)
        self._to_write = deque(each for each in self._to_write if each.message.move != move)
        self._last = deque(each for each in self._last if each.message.move != move)

    # --- what comes

    def handle(self, frame: Frame) -> News | None:
        """What a frame brings, if it is of any use."""
        if isinstance(frame.message, Blocks | Last):
            return self._take_blocks(frame, frame.message)
        return self._take_answer(frame, frame.message)

    def written(self, message: Blocks | Last) -> None:
        incoming = self._incoming.get(message.move)
        if incoming is not None:
            incoming.num_unwritten -= 1

    def _take_blocks(self, frame: Frame, message: Blocks | Last) -> News | None:
        incoming = self._incoming.get(message.move)
        if incoming is None:
            self._drop("blocks of a move that is not expected")
        elif incoming.sender not in (b"", frame.sender):
            self._drop("blocks of a move that another instance sends")
        elif incoming.num_unwritten == CREDITS:
            self._drop("more blocks than were acknowledged")
        else:
            incoming.sender = frame.sender
            incoming.num_unwritten += 1
            return Came(message, frame.sender, frame.payload)
        return None

    def _take_answer(self, frame: Frame, message: Ack | Nak) -> News | None:
        outgoing = self._outgoing.get(message.move)
        if outgoing is None or outgoing.to.encode() != frame.sender:
            self._drop("an answer to a move that is not under way")
        elif isinstance(message, Nak):
            return message
        elif not outgoing.num_unacknowledged:
            self._drop("it acknowledges what was not sent")
        else:
            outgoing.num_unacknowledged -= 1
            outgoing.heard_s = self._clock()
            if not len(outgoing.blocks) and not outgoing.num_unacknowledged:
                return Copied(message.move)
        return None

    # --- what is next

    @property
    def has_last(self) -> bool:
        """Whether something is to be copied at once."""
        return bool(self._last)

    @property
    def has_chunk(self) -> bool:
        """Whether something is to be copied when it is time."""
        return bool(self._to_write) or any(each.may_send for each in self._outgoing.values())

    def next_last(self) -> Sending | Writing | None:
        """The last blocks of a move, to be sent or written."""
        return self._last.popleft() if self._last else None

    def next_writing(self) -> Writing | None:
        """The next blocks to write."""
        return self._to_write.popleft() if self._to_write else None

    def next_sending(self, num_blocks: int) -> Sending | None:
        """The next blocks to send, `num_blocks` at most; moves take turns."""
        move = next((move for move, each in self._outgoing.items() if each.may_send), None)
        if move is None:
            return None
        outgoing = self._outgoing[move] = self._outgoing.pop(move)
        blocks, outgoing.blocks = outgoing.blocks[:num_blocks], outgoing.blocks[num_blocks:]
        message = Blocks(move, outgoing.first, len(blocks))
        outgoing.first += len(blocks)
        outgoing.num_unacknowledged += 1
        return Sending(message, outgoing.to, blocks)
