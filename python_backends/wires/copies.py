"""What an instance has to copy for the requests that move, by the number of their move. Called by the copier,
one thread at a time.

At most CREDITS messages with blocks are under way for one move: the destination acknowledges each as soon as
it has written it. Tested in tests/pure/test_blocks_wire.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from python_backends.nouns.moves import Ack, Blocks, Last, Nak
from python_backends.nouns.request import Ids
from python_backends.wires.blocks import Frame, Payload

CREDITS = 4
NO_BLOCKS: Ids = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Copied:
    """The destination has written all blocks of a round."""

    move: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The last blocks have been read and sent."""

    move: int


@dataclass(frozen=True, slots=True, eq=False)
class Came:
    """Blocks, or the last ones, have come for a move that is expected here."""

    message: Blocks | Last
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Written:
    """The blocks of one message stand in the engine's memory."""

    move: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """No block of a forgotten move is read or written any more."""

    move: int


News = Copied | HandedOver | Came | Written | LetGo | Nak


@dataclass(frozen=True, slots=True, eq=False)
class Sending:
    """Blocks to be read and sent."""

    message: Blocks | Last
    to: str
    blocks: Ids  # [message.count]


@dataclass(frozen=True, slots=True, eq=False)
class Writing:
    """Blocks to be written; all but the last ones of a move are then acknowledged."""

    move: int
    sender: bytes
    blocks: Ids
    payload: Payload
    is_last: bool


@dataclass(slots=True, eq=False)
class _Outgoing:
    to: str
    first: int = 0  # block number of the next block
    blocks: Ids = field(default_factory=lambda: NO_BLOCKS)  # of the round, not sent yet
    last: Sending | None = None
    num_unacknowledged: int = 0
    num_acknowledged: int = 0


@dataclass(slots=True, eq=False)
class _Incoming:
    sender: bytes = b""  # of its first message; others are not listened to
    num_open: int = 0  # messages that have come and are not written yet
    to_write: deque[Writing] = field(default_factory=deque)


class Copies:
    """`drop` is called with the reason when a frame is dropped."""

    def __init__(self, drop: Callable[[str], None]) -> None:
        self._drop = drop
        self._outgoing: dict[int, _Outgoing] = {}
        self._incoming: dict[int, _Incoming] = {}

    @property
    def endpoints(self) -> set[str]:
        """Of the instances to which requests leave."""
        return {outgoing.to for outgoing in self._outgoing.values()}

    def __contains__(self, move: int) -> bool:
        return move in self._outgoing or move in self._incoming

    def num_acknowledged(self, move: int) -> int:
        outgoing = self._outgoing.get(move)
        return outgoing.num_acknowledged if outgoing is not None else 0

    # --- what is to be done

    def copy_out(self, move: int, to: str, first: int, blocks: Ids) -> None:
        outgoing = self._outgoing.setdefault(move, _Outgoing(to))
        outgoing.first, outgoing.blocks = first, blocks

    def hand_over(self, to: str, last: Last, blocks: Ids) -> None:
        self._outgoing.setdefault(last.move, _Outgoing(to)).last = Sending(last, to, blocks)

    def expect(self, move: int) -> None:
        self._incoming[move] = _Incoming()

    def write(self, move: int, blocks: Ids, payload: Payload, is_last: bool) -> None:
        incoming = self._incoming[move]
        incoming.to_write.append(Writing(move, incoming.sender, blocks, payload, is_last))

    def sender(self, move: int) -> bytes:
        return self._incoming[move].sender

    def forget(self, move: int) -> None:
        self._outgoing.pop(move, None)
        self._incoming.pop(move, None)

    def forget_all(self) -> None:
        self._outgoing.clear()
        self._incoming.clear()

    # --- what comes

    def take(self, frame: Frame) -> News | None:
        """What a frame brings, if it is of any use."""
        if isinstance(frame.message, Blocks | Last):
            return self._take_blocks(frame, frame.message)
        return self._take_answer(frame, frame.message)

    def written(self, writing: Writing) -> None:
        incoming = self._incoming.get(writing.move)
        if incoming is not None:
            incoming.num_open -= 1

    def _take_blocks(self, frame: Frame, message: Blocks | Last) -> News | None:
        incoming = self._incoming.get(message.move)
        if incoming is None:
            self._drop("blocks of a move that is not expected")
        elif incoming.sender not in (b"", frame.sender):
            self._drop("blocks of a move that another instance sends")
        elif incoming.num_open == CREDITS:
            self._drop("more blocks than were acknowledged")
        else:
            incoming.sender = frame.sender
            incoming.num_open += 1
            return Came(message, frame.payload)
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
            outgoing.num_acknowledged += 1
            if not len(outgoing.blocks) and not outgoing.num_unacknowledged:
                return Copied(message.move)
        return None

    # --- what is next

    @property
    def has_last(self) -> bool:
        """Whether something is to be copied at once."""
        writing = any(each.to_write and each.to_write[0].is_last for each in self._incoming.values())
        return writing or any(each.last is not None for each in self._outgoing.values())

    @property
    def has_chunk(self) -> bool:
        """Whether something is to be copied when it is time."""
        writing = any(each.to_write for each in self._incoming.values())
        return writing or any(map(_may_send, self._outgoing.values()))

    def next_last(self) -> Sending | Writing | None:
        """The last blocks of a move, sent or written."""
        for outgoing in self._outgoing.values():
            if outgoing.last is not None:
                last, outgoing.last = outgoing.last, None
                return last
        return self.next_writing(is_last=True)

    def next_writing(self, is_last: bool = False) -> Writing | None:
        """The next blocks to write: the last ones of a move, or others. Moves take turns."""
        for move, incoming in self._incoming.items():
            if incoming.to_write and incoming.to_write[0].is_last == is_last:
                self._incoming[move] = self._incoming.pop(move)
                return incoming.to_write.popleft()
        return None

    def next_sending(self, num_blocks: int) -> Sending | None:
        """The next blocks to send, `num_blocks` at most; moves take turns."""
        move = next((move for move, each in self._outgoing.items() if _may_send(each)), None)
        if move is None:
            return None
        outgoing = self._outgoing[move] = self._outgoing.pop(move)
        blocks, outgoing.blocks = outgoing.blocks[:num_blocks], outgoing.blocks[num_blocks:]
        message = Blocks(move, outgoing.first, len(blocks))
        outgoing.first += len(blocks)
        outgoing.num_unacknowledged += 1
        return Sending(message, outgoing.to, blocks)


def _may_send(outgoing: _Outgoing) -> bool:
    return len(outgoing.blocks) > 0 and outgoing.num_unacknowledged < CREDITS
