"""The destination's half of a move: it reserves a slot and blocks, writes the blocks as they come, and adopts
the request when the last ones are there.

Full blocks of known tokens can be found by other requests as soon as they are written, and stay findable if
the move ends. Called by `Moves`. All times are seconds of its clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np

from python_backends.moving.copier import Copier
from python_backends.moving.copies import Came, Written
from python_backends.moving.timeouts import SILENT_S
from python_backends.nouns.messages import FromInstance
from python_backends.nouns.moves import Adopted, Blocks, Last, MoveEnded, Refusal, Refused, Reserve, Reserved
from python_backends.nouns.request import Ids
from python_backends.scheduling.handover import RefusedMove
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.state.sequence import Sequence

log = logging.getLogger("gapless.instance")


@dataclass(slots=True, eq=False)
class _Coming:
    move: int
    sequence: Sequence  # for which a slot is reserved; its tokens are those of the reservation
    heard_s: float
    num_come: int  # leading blocks that are here, or are being written
    num_written: int  # leading blocks that are here


class Destination:
    """`writes_last`: the last blocks are written by the loop itself, which saves it a turn. Right if it takes
    messages only while no step is launched; else writing would wait for these.
    """

    def __init__(
        self, scheduler: SlotScheduler, copier: Copier, writes_last: bool, clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._handover = scheduler.handover
        self._block_tokens = scheduler.limits.block_tokens
        self._copier = copier
        self._writes_last = writes_last
        self._clock = clock
        self._coming: dict[int, _Coming] = {}  # by move

    @property
    def is_active(self) -> bool:
        return bool(self._coming)

    def reserve(self, order: Reserve) -> list[FromInstance]:
        try:
            num_found = self._reserve(order)
        except RefusedMove as refused:
            return [Refused(order.move, refused.why)]
        return [Reserved(order.move, num_found)]

    def handle(self, news: Came | Written) -> list[FromInstance]:
        """News of a move that may have ended."""
        coming = self._coming.get(news.message.move)
        if coming is None:
            return []
        coming.heard_s = self._clock()
        try:
            return self._came(coming, news) if isinstance(news, Came) else self._written(coming, news.message)
        except RefusedMove as refused:
            return self._refuse(coming, refused.why)
        except ValueError as error:
            log.warning("request %d can't move here: %s", coming.sequence.request_id, error)
            return self._refuse(coming, "model")

    def abort(self, move: int) -> None:
        """The move is off, unless the request has been adopted."""
        coming = self._coming.get(move)
        if coming is not None:
            self._drop(coming)

    def check(self) -> list[FromInstance]:
        """Once a turn: drops reservations for which nothing comes."""
        latest_s = self._clock() - SILENT_S
        silent = [coming for coming in self._coming.values() if coming.heard_s < latest_s]
        for coming in silent:
            self._drop(coming)
        return [MoveEnded(coming.move, "lost") for coming in silent]

    def abandon_all(self) -> None:
        """Forgets all moves; the copier has forgotten them, and the slot scheduler drops what it reserves."""
        self._coming.clear()

    def _reserve(self, order: Reserve) -> int:
        """Returns how many leading blocks are here already. Raises RefusedMove."""
        if order.move in self._coming:
            raise RefusedMove("busy")
        try:
            sequence = self._scheduler.new_sequence(
                order.request, order.delivered, order.request_epoch, order.age_s
            )
        except ValueError as error:
            raise RefusedMove("model") from error
        self._handover.reserve(sequence)
        num_found = sequence.num_published
        self._coming[order.move] = _Coming(order.move, sequence, self._clock(), num_found, num_found)
        self._copier.expect(order.move)
        return num_found

    def _came(self, coming: _Coming, came: Came) -> list[FromInstance]:
        """Raises RefusedMove, and ValueError if this is not what comes next."""
        message, end = came.message, _end(came.message)
        if message.first != coming.num_come:
            raise ValueError(f"block {coming.num_come} comes next, not {message.first}")
        if isinstance(message, Last):
            num_tokens = coming.sequence.num_prompt_tokens + len(message.output_tokens)
            if end != ceil((num_tokens - 1) / self._block_tokens) or coming.num_written < coming.num_come:
                raise ValueError(f"{end} blocks for {num_tokens} tokens")
        blocks = self._handover.extend(coming.sequence, message.first, end)
        coming.num_come = end
        if not isinstance(message, Last) or not self._writes_last:
            self._copier.write(came, blocks)
            return []
        if len(blocks):
            self._copier.write_now(blocks, came.payload)
        return self._adopt(coming, message)

    def _written(self, coming: _Coming, message: Blocks | Last) -> list[FromInstance]:
        """Raises ValueError if the request has come whole and its tokens are not its own."""
        if isinstance(message, Last):
            return self._adopt(coming, message)
        coming.num_written = _end(message)
        known = coming.sequence.tokens[: coming.num_written * self._block_tokens]
        self._handover.publish(coming.sequence, known)
        return []

    def _adopt(self, coming: _Coming, last: Last) -> list[FromInstance]:
        """Raises ValueError if these are not tokens of this request."""
        sequence = coming.sequence
        tokens: Ids = np.concatenate([sequence.request.prompt, last.output_tokens])
        self._handover.adopt(sequence, tokens)
        self._forget(coming)
        return [Adopted(coming.move, sequence.request_id, sequence.request_epoch, sequence.num_output_tokens)]

    def _refuse(self, coming: _Coming, why: Refusal) -> list[FromInstance]:
        """The source tells the scheduler model."""
        self._copier.refuse(coming.move, why)
        self._drop(coming)
        return []

    def _drop(self, coming: _Coming) -> None:
        self._forget(coming)
        self._handover.drop(coming.sequence)

    def _forget(self, coming: _Coming) -> None:
        del self._coming[coming.move]
        self._copier.forget(coming.move)


def _end(message: Blocks | Last) -> int:
    """The number of the block after its last one."""
    return message.first + message.count
