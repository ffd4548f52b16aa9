"""The source's half of a move: it copies the blocks of a request that decodes on, in rounds, then holds the
request and hands it over.

Round 1 copies all full blocks that the destination does not have, each later one those that became full
meanwhile. Once little is left the request is held; when all launched steps have been booked, the scheduler
model is told how many tokens it has, and the destination gets them with the last blocks. From then on the
request belongs to the destination: slot and blocks are kept, and nothing is computed, until the request is
cancelled, or resumed because the destination did not take it.

Called by `Moves`. All times are seconds of its clock.
Tested in tests/pure/test_moves.py and tests/pure/test_failed_moves.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from math import ceil

from python_backends.handover.transport import Transport
from python_backends.nouns.messages import FromInstance
from python_backends.nouns.moves import Held, Last, MoveEnded, MoveOut, Nak, Resume
from python_backends.nouns.request import Ids
from python_backends.scheduling.scheduler import SlotScheduler
from python_backends.scheduling.state.sequence import NO_BLOCKS, Sequence, Status
from python_backends.wires.copies import Copied, HandedOver, LetGo

log = logging.getLogger("gapless.instance")

SILENT_S = 30.0  # a move of which nothing has been heard for so long is given up


class _Phase(Enum):
    COPIES = auto()  # the request decodes
    HOLDS = auto()  # launched steps may still have it
    WAITS = auto()  # it has been handed over


@dataclass(slots=True, eq=False)
class _Leaving:
    order: MoveOut
    num_sent: int  # leading blocks of the request that are at the destination, or on their way
    heard_s: float
    phase: _Phase = _Phase.COPIES
    num_rounds: int = 0
    num_acknowledged: int = 0  # messages
    blocks: Ids = field(default_factory=lambda: NO_BLOCKS)  # that the transport reads


class Source:
    def __init__(
        self, scheduler: SlotScheduler, transport: Transport, max_rounds: int, clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._handover = scheduler.handover
        self._transport = transport
        self._max_rounds = max_rounds
        self._clock = clock
        self._leaving: dict[int, _Leaving] = {}  # by move
        self._in_use: dict[int, Ids] = {}  # blocks of moves that have ended, which the transport still reads

    @property
    def is_idle(self) -> bool:
        return not self._leaving and not self._in_use

    def move_out(self, order: MoveOut) -> list[FromInstance]:
        """Begins a move."""
        if not self._handover.can_leave(order.request_id, order.request_epoch):
            return [MoveEnded(order.move, "ended")]
        if not self._is_possible(order):
            return [MoveEnded(order.move, "refused")]
        leaving = self._leaving[order.move] = _Leaving(order, order.first_block, self._clock())
        return self._go_on(leaving)

    def take(self, news: Copied | HandedOver | LetGo | Nak) -> list[FromInstance]:
        """News of a move that may have ended."""
        if isinstance(news, LetGo):
            self._give_back(self._in_use.pop(news.move, NO_BLOCKS))
            return []
        leaving = self._leaving.get(news.move)
        if leaving is None:
            return []
        if isinstance(news, Nak):
            return self._refused(leaving, news.why)
        self._give_back(leaving.blocks)
        leaving.blocks = NO_BLOCKS
        return self._go_on(leaving) if isinstance(news, Copied) else []

    def abort(self, move: int) -> None:
        """The move is off, unless the request has been handed over."""
        leaving = self._leaving.get(move)
        if leaving is not None and leaving.phase is not _Phase.WAITS:
            self._decode_on(leaving)
            self._forget(leaving)

    def resume(self, message: Resume) -> list[FromInstance]:
        """The destination did not take the request: it decodes on here, as another life. If it can't, because
        it is not held here any more, it leaves and the scheduler model is told so.
        """
        leaving = self._leaving.get(message.move)
        if leaving is not None and leaving.phase is _Phase.WAITS and self._sequence(leaving) is not None:
            self._handover.resume(message.request_id, message.request_epoch)
            self._forget(leaving)
            return []
        self._scheduler.cancel(message.request_id)
        return [MoveEnded(message.move, "lost")]

    def look(self) -> list[FromInstance]:
        """Once a turn: looks which requests have ended or settled, and which destinations are silent."""
        messages: list[FromInstance] = []
        for leaving in list(self._leaving.values()):
            if self._sequence(leaving) is None:
                self._forget(leaving)
                if leaving.phase is not _Phase.WAITS:
                    messages.append(MoveEnded(leaving.order.move, "ended"))
            elif leaving.phase is _Phase.HOLDS:
                messages += self._hand_over_if_settled(leaving)
            elif leaving.phase is _Phase.COPIES and self._is_silent(leaving):
                messages += self._end(leaving, "lost")
        return messages

    def abandon_all(self) -> None:
        """Forgets all moves; the transport has forgotten them, and uses no block any more."""
        for blocks in (*self._in_use.values(), *(leaving.blocks for leaving in self._leaving.values())):
            self._give_back(blocks)
        self._in_use.clear()
        self._leaving.clear()

    def _is_possible(self, order: MoveOut) -> bool:
        is_leaving = any(each.order.request_id == order.request_id for each in self._leaving.values())
        has_blocks = 0 <= order.first_block <= self._handover.num_full_blocks(order.request_id)
        try:
            self._transport.check_endpoint(order.to)
        except ValueError as error:
            log.warning("request %d can't move: %s", order.request_id, error)
            return False
        return has_blocks and not is_leaving and order.move not in self._leaving

    def _go_on(self, leaving: _Leaving) -> list[FromInstance]:
        """All blocks that were sent are at the destination: begins the next round, or holds the request."""
        order = leaving.order
        if self._sequence(leaving) is None:
            return self._end(leaving, "ended")
        num_left = self._handover.num_full_blocks(order.request_id) - leaving.num_sent
        if num_left <= 1 or self._copies_at_once(leaving, num_left):
            self._handover.hold(order.request_id)
            leaving.phase = _Phase.HOLDS
            return self._hand_over_if_settled(leaving)
        if leaving.num_rounds == self._max_rounds:
            return self._end(leaving, "too_slow")
        first, last = leaving.num_sent, leaving.num_sent + num_left
        leaving.blocks = self._handover.take(order.request_id, first, last)
        leaving.num_rounds, leaving.num_sent = leaving.num_rounds + 1, last
        leaving.heard_s = self._clock()
        self._transport.copy_out(order.move, order.to, first, leaving.blocks)
        return []

    def _copies_at_once(self, leaving: _Leaving, num_left: int) -> bool:
        """Whether copying that many blocks should take less than half a step. That is true of few blocks
        only: sending and writing them may take far longer than reading them, so a round comes first.
        """
        half_step_s = self._scheduler.outlook.step_s / 2
        return leaving.num_rounds > 0 and self._transport.copy_s(num_left) < half_step_s

    def _hand_over_if_settled(self, leaving: _Leaving) -> list[FromInstance]:
        order, sequence = leaving.order, self._sequence(leaving)
        if sequence is None or not self._handover.is_settled(order.request_id):
            return []
        tokens = self._handover.tokens(order.request_id)
        block_tokens = self._scheduler.limits.block_tokens
        first, last = leaving.num_sent, ceil((len(tokens) - 1) / block_tokens)  # of all but one token
        leaving.blocks = self._handover.take(order.request_id, first, last)
        leaving.phase = _Phase.WAITS
        output_tokens = tokens[sequence.num_prompt_tokens :]
        self._transport.hand_over(
            order.to, Last(order.move, output_tokens, first, last - first), leaving.blocks
        )
        return [Held(order.move, len(output_tokens))]

    def _refused(self, leaving: _Leaving, why: str) -> list[FromInstance]:
        """The destination has forgotten the move: the request decodes on here, as the same life."""
        log.info("request %d does not move: the destination says %r", leaving.order.request_id, why[:64])
        if self._sequence(leaving) is None:
            return self._end(leaving, "ended")
        self._decode_on(leaving)
        return self._end(leaving, "refused")

    def _decode_on(self, leaving: _Leaving) -> None:
        if leaving.phase is not _Phase.COPIES:
            self._handover.resume(leaving.order.request_id, leaving.order.request_epoch)

    def _end(self, leaving: _Leaving, why: str) -> list[FromInstance]:
        self._forget(leaving)
        return [MoveEnded(leaving.order.move, why)]

    def _forget(self, leaving: _Leaving) -> None:
        move = leaving.order.move
        del self._leaving[move]
        if self._transport.forget(move):
            self._give_back(leaving.blocks)
        else:
            self._in_use[move] = leaving.blocks

    def _give_back(self, blocks: Ids) -> None:
        if len(blocks):
            self._handover.give_back(blocks)

    def _sequence(self, leaving: _Leaving) -> Sequence | None:
        """The life of the request that moves, if it still runs here."""
        sequence = self._scheduler.find(leaving.order.request_id)
        is_here = (
            sequence is not None
            and sequence.status is Status.RUNNING
            and sequence.request_epoch == leaving.order.request_epoch
        )
        return sequence if is_here else None

    def _is_silent(self, leaving: _Leaving) -> bool:
        count, now_s = self._transport.num_acknowledged(leaving.order.move), self._clock()
        if count != leaving.num_acknowledged:
            leaving.num_acknowledged, leaving.heard_s = count, now_s
        return now_s - leaving.heard_s > SILENT_S
