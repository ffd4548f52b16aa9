"""The destination's half of a move: it reserves a slot and blocks, writes the blocks as they come, and adopts
the request when the last ones are there.

Full blocks of known tokens can be found by other requests as soon as they are written, and stay findable if
the move ends. Called by `Moves`. All times are seconds of its clock.
Tested in tests/pure/test_moves.py and tests/pure/test_failed_moves.py.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from python_backends.handover.transport import Transport
from python_backends.nouns.messages import FromInstance
from python_backends.nouns.moves import Adopted, Blocks, Last, MoveEnded, Refused, Reserve, Reserved
from python_backends.nouns.request import Ids
from python_backends.scheduling.handover import RefusedMove
from python_backends.scheduling.scheduler import SlotScheduler
from python_backends.wires.copies import Came, LetGo, Written

log = logging.getLogger("gapless.instance")

SILENT_S = 30.0  # a reservation for which nothing has come for so long is dropped


@dataclass(slots=True, eq=False)
class _Coming:
    order: Reserve
    num_taken: int  # leading blocks that are here, or are being written
    heard_s: float
    num_written: int = 0  # leading blocks that are here
    being_written: deque[int] = field(default_factory=deque)  # `num_written` after each message
    tokens: Ids | None = None  # prompt and output, once the last blocks have come


class Destination:
    """`writes_last`: the last blocks are written by the loop itself, which saves it a turn. Right if it takes
    messages only while no step is launched; else writing would wait for these.
    """

    def __init__(
        self, scheduler: SlotScheduler, transport: Transport, writes_last: bool, clock: Callable[[], float]
    ) -> None:
        self._handover = scheduler.handover
        self._block_tokens = scheduler.limits.block_tokens
        self._transport = transport
        self._writes_last = writes_last
        self._clock = clock
        self._coming: dict[int, _Coming] = {}  # by move
        self._dropped: set[int] = set()  # moves that have ended, whose blocks are still written

    @property
    def is_idle(self) -> bool:
        return not self._coming and not self._dropped

    def reserve(self, order: Reserve) -> list[FromInstance]:
        if order.move in self._coming or order.move in self._dropped:
            return [Refused(order.move, "busy")]
        try:
            num_found = self._handover.reserve(
                order.move, order.request, order.delivered, order.request_epoch, order.age_s
            )
        except RefusedMove as refused:
            return [Refused(order.move, refused.why)]
        self._coming[order.move] = _Coming(order, num_found, self._clock(), num_found)
        self._transport.expect(order.move)
        return [Reserved(order.move, num_found)]

    def take(self, news: Came | Written | LetGo) -> list[FromInstance]:
        """News of a move that may have ended."""
        if isinstance(news, LetGo):
            if news.move in self._dropped:
                self._dropped.remove(news.move)
                self._handover.drop(news.move)
            return []
        coming = self._coming.get(news.message.move if isinstance(news, Came) else news.move)
        if coming is None:
            return []
        coming.heard_s = self._clock()
        try:
            if isinstance(news, Written):
                return self._written(coming)
            return self._came(coming, news.message, news.payload)
        except RefusedMove as refused:
            return self._refuse(coming, refused.why)
        except ValueError as error:
            request_id = coming.order.request.request_id
            log.warning("request %d can't move here: %s", request_id, error)
            return self._refuse(coming, "model")

    def abort(self, move: int) -> None:
        """The move is off, unless the request has been adopted."""
        coming = self._coming.get(move)
        if coming is not None:
            self._drop(coming)

    def look(self) -> list[FromInstance]:
        """Once a turn: drops reservations for which nothing comes."""
        latest_s = self._clock() - SILENT_S
        silent = [coming for coming in self._coming.values() if coming.heard_s < latest_s]
        for coming in silent:
            self._drop(coming)
        return [MoveEnded(coming.order.move, "lost") for coming in silent]

    def abandon_all(self) -> None:
        """Forgets all moves; the transport has forgotten them, and the slot scheduler drops what it keeps."""
        self._coming.clear()
        self._dropped.clear()

    def _came(self, coming: _Coming, message: Blocks | Last, payload: memoryview) -> list[FromInstance]:
        """Raises RefusedMove, and ValueError if this is not what comes next."""
        if message.first != coming.num_taken:
            raise ValueError(f"block {coming.num_taken} comes next, not {message.first}")
        end = message.first + message.count
        if isinstance(message, Last):
            return self._last_came(coming, message, payload)
        blocks = self._handover.blocks_of(message.move, message.first, end)
        coming.num_taken = end
        coming.being_written.append(end)
        self._transport.write(message.move, blocks, payload)
        return []

    def _last_came(self, coming: _Coming, message: Last, payload: memoryview) -> list[FromInstance]:
        """Raises what `_came` raises."""
        tokens = np.concatenate([coming.order.request.prompt, message.output_tokens]).astype(np.int32)
        end = message.first + message.count
        if end != ceil((len(tokens) - 1) / self._block_tokens) or coming.being_written:
            raise ValueError(f"{end} blocks for {len(tokens)} tokens")
        blocks = self._handover.blocks_of(message.move, message.first, end)
        if not self._writes_last:
            coming.tokens = tokens
            coming.being_written.append(end)
            self._transport.write(message.move, blocks, payload, is_last=True)
            return []
        if len(blocks):
            self._transport.write_now(blocks, payload)
        return self._adopt(coming, tokens)

    def _written(self, coming: _Coming) -> list[FromInstance]:
        """Raises ValueError if the request has come whole and its tokens are not its own."""
        coming.num_written = coming.being_written.popleft()
        order = coming.order
        if coming.tokens is not None:
            return self._adopt(coming, coming.tokens)
        known = np.concatenate([order.request.prompt, order.delivered]).astype(np.int32)
        self._handover.publish(order.move, known[: coming.num_written * self._block_tokens])
        return []

    def _adopt(self, coming: _Coming, tokens: Ids) -> list[FromInstance]:
        """Raises ValueError if these are not tokens of this request."""
        order = coming.order
        first_index = self._handover.adopt(order.move, tokens)
        del self._coming[order.move]
        self._transport.forget(order.move)
        return [Adopted(order.move, order.request.request_id, order.request_epoch, first_index)]

    def _refuse(self, coming: _Coming, why: str) -> list[FromInstance]:
        """The source tells the scheduler model."""
        self._transport.refuse(coming.order.move, why)
        self._drop(coming)
        return []

    def _drop(self, coming: _Coming) -> None:
        move = coming.order.move
        del self._coming[move]
        if self._transport.forget(move):
            self._handover.drop(move)
        else:
            self._dropped.add(move)
