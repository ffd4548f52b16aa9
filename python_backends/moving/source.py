"""The source's half of a move: it copies the blocks of a request that decodes on, in rounds, then suspends
the request and hands it over.

Round 1 copies all full blocks that the destination does not have, each later one those that became full
meanwhile. Once little is left the request is suspended; when all launched steps have been booked, the
scheduler model is told how many tokens it has, and the destination gets them with the last blocks. From then
on the request belongs to the destination: slot and blocks are kept, and nothing is computed, until the
request is cancelled, or resumed because the destination did not take it.

Called by `Moves`. All times are seconds of its clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from math import ceil

from python_backends.moving.copier import Copier
from python_backends.moving.copies import Copied
from python_backends.moving.timeouts import SILENT_S
from python_backends.nouns.messages import FromInstance
from python_backends.nouns.moves import End, Last, MoveEnded, MoveOut, Nak, Resume, Suspended
from python_backends.nouns.request import Ids
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.state.sequence import NO_BLOCKS, Sequence, Status

log = logging.getLogger("gapless.instance")

MAX_ROUNDS = 3  # each leaves what was decoded during it: after three, copying is slower than decoding


class _Phase(Enum):
    COPIES = auto()  # the request decodes
    SUSPENDS = auto()  # launched steps may still have it
    WAITS = auto()  # it has been handed over


@dataclass(slots=True, eq=False)
class _Leaving:
    order: MoveOut
    num_copied: int  # leading blocks of the request that are at the destination
    phase: _Phase = _Phase.COPIES
    num_rounds: int = 0
    lent: Ids = field(default_factory=lambda: NO_BLOCKS)  # the blocks after these, which the copier reads


class Source:
    def __init__(self, scheduler: SlotScheduler, copier: Copier, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._handover = scheduler.handover
        self._copier = copier
        self._clock = clock
        self._leaving: dict[int, _Leaving] = {}  # by move

    @property
    def is_active(self) -> bool:
        return bool(self._leaving)

    def move_out(self, order: MoveOut) -> list[FromInstance]:
        """Begins a move."""
        sequence = self._find(order)
        if sequence is None or not self._handover.can_leave(sequence):
            return [MoveEnded(order.move, "ended")]
        if not self._is_possible(order, sequence):
            return [MoveEnded(order.move, "refused")]
        leaving = self._leaving[order.move] = _Leaving(order, order.first_block)
        return self._go_on(leaving)

    def handle(self, news: Copied | Nak) -> list[FromInstance]:
        """News of a move that may have ended."""
        leaving = self._leaving.get(news.move)
        if leaving is None:
            return []
        if isinstance(news, Nak):
            return self._refused(leaving, news)
        leaving.num_copied += len(leaving.lent)
        self._give_back(leaving)
        return self._go_on(leaving)

    def abort(self, move: int) -> None:
        """The move is off, unless the request has been handed over."""
        leaving = self._leaving.get(move)
        if leaving is not None and leaving.phase is not _Phase.WAITS:
            self._decode_on(leaving)
            self._forget(leaving)

    def resume(self, message: Resume) -> list[FromInstance]:
        """The destination did not take the request: it decodes on here, as another life. If it can't, because
        it is not suspended here any more, it leaves and the scheduler model is told so.
        """
        leaving = self._leaving.get(message.move)
        if leaving is not None and leaving.phase is _Phase.WAITS and (sequence := self._find(leaving.order)):
            self._handover.resume(sequence, message.request_epoch)
            self._forget(leaving)
            return []
        self._scheduler.cancel(message.request_id)
        return [MoveEnded(message.move, "gone")]

    def check(self) -> list[FromInstance]:
        """Once a turn: which requests have ended or settled, and which destinations are silent."""
        messages: list[FromInstance] = []
        for leaving in list(self._leaving.values()):
            sequence = self._find(leaving.order)
            if sequence is None and leaving.phase is _Phase.WAITS:
                self._forget(leaving)
            elif sequence is None:
                messages += self._end(leaving, "ended")
            elif leaving.phase is _Phase.SUSPENDS:
                messages += self._hand_over_if_settled(leaving, sequence)
            elif leaving.phase is _Phase.COPIES and self._is_silent(leaving):
                messages += self._end(leaving, "lost")
        return messages

    def abandon_all(self) -> None:
        """Forgets all moves; the copier has forgotten them, and uses no block any more."""
        for leaving in self._leaving.values():
            self._give_back(leaving)
        self._leaving.clear()

    def _is_possible(self, order: MoveOut, sequence: Sequence) -> bool:
        is_leaving = any(each.order.request_id == order.request_id for each in self._leaving.values())
        has_blocks = 0 <= order.first_block <= self._handover.num_full_blocks(sequence)
        try:
            self._copier.check_endpoint(order.to)
        except ValueError as error:
            log.warning("request %d can't move: %s", order.request_id, error)
            return False
        return has_blocks and not is_leaving and order.move not in self._leaving

    def _go_on(self, leaving: _Leaving) -> list[FromInstance]:
        """All blocks that were sent are at the destination: the next round, or the request is suspended."""
        sequence = self._find(leaving.order)
        if sequence is None:
            return self._end(leaving, "ended")
        num_left = self._handover.num_full_blocks(sequence) - leaving.num_copied
        if num_left <= 1 or self._copies_at_once(leaving, num_left):
            return self._suspend(leaving, sequence)
        if leaving.num_rounds == MAX_ROUNDS:
            return self._end(leaving, "too_slow")
        self._copy_out(leaving, sequence, num_left)
        return []

    def _copies_at_once(self, leaving: _Leaving, num_left: int) -> bool:
        """Whether copying that many blocks should take less than half a step. That is true of few blocks
        only: sending and writing them may take far longer than reading them, so a round comes first.
        """
        half_step_s = self._scheduler.outlook.step_s / 2
        return leaving.num_rounds > 0 and self._copier.copy_s(num_left) < half_step_s

    def _copy_out(self, leaving: _Leaving, sequence: Sequence, count: int) -> None:
        """Another round, of `count` blocks."""
        first, order = leaving.num_copied, leaving.order
        leaving.lent = self._handover.lend(sequence, first, first + count)
        leaving.num_rounds += 1
        self._copier.copy_out(order.move, order.to, first, leaving.lent)

    def _suspend(self, leaving: _Leaving, sequence: Sequence) -> list[FromInstance]:
        self._handover.suspend(sequence)
        leaving.phase = _Phase.SUSPENDS
        return self._hand_over_if_settled(leaving, sequence)

    def _hand_over_if_settled(self, leaving: _Leaving, sequence: Sequence) -> list[FromInstance]:
        if not self._scheduler.slots.is_settled(sequence.slot):
            return []
        order, tokens = leaving.order, self._handover.tokens(sequence)
        block_tokens = self._scheduler.limits.block_tokens
        first, end = leaving.num_copied, ceil((len(tokens) - 1) / block_tokens)  # of all but one token
        leaving.lent = self._handover.lend(sequence, first, end)
        leaving.phase = _Phase.WAITS
        output_tokens = tokens[sequence.num_prompt_tokens :]
        self._copier.hand_over(order.to, Last(order.move, output_tokens, first, end - first), leaving.lent)
        return [Suspended(order.move, len(output_tokens))]

    def _refused(self, leaving: _Leaving, nak: Nak) -> list[FromInstance]:
        """The destination has forgotten the move: the request decodes on here, as the same life."""
        log.info("request %d does not move: the destination says %r", leaving.order.request_id, nak.why)
        is_here = self._decode_on(leaving)
        return self._end(leaving, "refused" if is_here else "ended")

    def _decode_on(self, leaving: _Leaving) -> bool:
        """As the same life. False: it does not run here any more."""
        sequence = self._find(leaving.order)
        if sequence is not None and leaving.phase is not _Phase.COPIES:
            self._handover.resume(sequence, sequence.request_epoch)
        return sequence is not None

    def _end(self, leaving: _Leaving, why: End) -> list[FromInstance]:
        self._forget(leaving)
        return [MoveEnded(leaving.order.move, why)]

    def _forget(self, leaving: _Leaving) -> None:
        del self._leaving[leaving.order.move]
        self._copier.forget(leaving.order.move)
        self._give_back(leaving)

    def _give_back(self, leaving: _Leaving) -> None:
        self._handover.give_back(leaving.lent)
        leaving.lent = NO_BLOCKS

    def _find(self, order: MoveOut) -> Sequence | None:
        """The life of the request that moves, if it still runs here."""
        sequence = self._scheduler.find(order.request_id)
        is_here = (
            sequence is not None
            and sequence.status is Status.RUNNING
            and sequence.request_epoch == order.request_epoch
        )
        return sequence if is_here else None

    def _is_silent(self, leaving: _Leaving) -> bool:
        return self._clock() - self._copier.heard_s(leaving.order.move) > SILENT_S
