"""The copier: a thread that reads and writes KV blocks of requests that move, and sends and takes them.

The loop gives it blocks to copy, and takes its results by `received`. It copies in chunks of a few
milliseconds, with pauses between them, because the engine's own threads compute meanwhile; only the last
blocks of a move, for which a request is suspended, go at once. The instance's loop thread uses it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from python_backends.engine.protocol import ExportsBlocks
from python_backends.moving.copies import Came, Copies, News, Sending, Writing, Written
from python_backends.moving.wire import NO_BYTES, BlocksWire, Payload
from python_backends.nouns.moves import Ack, Last, Nak, Refusal
from python_backends.nouns.request import Ids

CHUNK_S = 0.003  # a chunk takes about so long to read
MAX_CHUNK_BYTES = 16 << 20
FADING = 0.2  # weight of the latest chunk in what a block takes
COPIES = 3  # a block is read, sent and written; each takes about as long
LOOK_S = 1.0  # a copier without work wakes this often
SHARE = 0.05  # of the time, at most: a move may take long, because its request runs on meanwhile


class Copier:
    """`share` of the time is spent on copying at most. `work_clock` gives the seconds of processor time that
    the calling thread has used: neither waiting nor the work of other threads counts.
    """

    def __init__(
        self,
        wire: BlocksWire,
        engine: ExportsBlocks,
        share: float = SHARE,
        clock: Callable[[], float] = time.monotonic,
        work_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._wire = wire
        self._engine = engine
        self._pause = 1 / share - 1  # after each second of work
        self._clock, self._work_clock = clock, work_clock
        self._changed = threading.Condition()  # guards the next four
        self._copies = Copies(wire.dropped.drop, clock)
        self._news: deque[News] = deque()
        self._answers: deque[tuple[bytes, Ack | Nak]] = deque()
        self._busy_with: int | None = None  # the move whose blocks are read or written now
        self._engine_use = threading.Lock()
        self._free_s = 0.0  # when the next chunk may be copied
        self._block_s = 0.0  # what reading a block takes; 0: not known yet
        self._writes_next = True  # chunks are written and sent in turn
        self._fault: BaseException | None = None
        self._is_open = True
        self.num_sent_bytes = 0  # to other instances; counted by the thread
        self._tell: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)

    def start(self, tell: Callable[[], None]) -> None:
        """`tell` is called by the copier's thread when there is news."""
        self._tell = tell
        self._thread.start()

    @property
    def address(self) -> tuple[str, str]:
        """Where other instances send blocks to, and how these are written."""
        return self._wire.endpoint, self._engine.kv_format

    def close(self) -> None:
        self._is_open = False
        self._wire.wake()
        self._thread.join()
        self._wire.close()

    @property
    def has_news(self) -> bool:
        return bool(self._news) or self._fault is not None

    def received(self) -> list[News]:
        """The news since the last call. Raises what has ended the copier's thread."""
        if self._fault is not None:
            raise self._fault
        return [self._news.popleft() for _ in range(len(self._news))]

    # --- at the source

    def check_endpoint(self, to: str) -> None:
        """Raises ValueError if blocks can't be sent there."""
        self._wire.check_endpoint(to)

    def copy_out(self, move: int, to: str, first: int, blocks: Ids) -> None:
        """A round: sends `blocks` [n], the request's blocks from number `first` on. `Copied` follows."""
        with self._told():
            self._copies.copy_out(move, to, first, blocks)

    def hand_over(self, to: str, last: Last, blocks: Ids) -> None:
        """Sends `last` with `blocks` [last.count] at once."""
        with self._told():
            self._copies.hand_over(to, last, blocks)

    def heard_s(self, move: int) -> float:
        """When the round of a move began, or the destination last acknowledged a message of it."""
        with self._changed:
            return self._copies.heard_s(move)

    def copy_s(self, num_blocks: int) -> float:
        """How long it takes until so many blocks stand at the destination if they are sent at once; infinite
        while that is not known.
        """
        return num_blocks * self._block_s * COPIES if self._block_s else math.inf

    # --- at the destination

    def expect(self, move: int) -> None:
        """Messages of this move are listened to from now on."""
        with self._told():
            self._copies.expect(move)

    def write(self, came: Came, blocks: Ids) -> None:
        """Writes what has come to `blocks` [n], then acknowledges it; the last ones of a move are written at
        once, and not acknowledged. `Written` follows.
        """
        with self._told():
            self._copies.write(came, blocks)

    def write_now(self, blocks: Ids, payload: Payload) -> None:
        """Writes in the calling thread. A chunk that is being copied is waited for."""
        with self._engine_use:
            self._engine.import_blocks(blocks, payload)

    def refuse(self, move: int, why: Refusal) -> None:
        """Tells the source that the request is not taken over."""
        with self._told():
            self._answers.append((self._copies.sender(move), Nak(move, why)))

    # --- at both ends

    def forget(self, move: int) -> None:
        """Nothing more is sent or taken for this move. A chunk of it that is being copied is waited for: from
        then on the copier uses none of its blocks.
        """
        with self._told():
            self._copies.forget(move)
            self._changed.wait_for(lambda: self._busy_with != move)

    def forget_all(self) -> None:
        """Forgets all moves, and all news of them."""
        with self._changed:
            moves = self._copies.moves
        for move in moves:
            self.forget(move)
        self._news.clear()

    # --- the thread

    def _run(self) -> None:
        try:
            while self._is_open:
                self._turn()
        except BaseException as fault:
            self._fault = fault
            self._finish(None)
            self._tell()

    def _turn(self) -> None:
        for frame in self._wire.receive(self._wait_s()):
            with self._changed:
                self._report(self._copies.handle(frame))
        while (last := self._next(self._copies.next_last)) is not None:
            self._copy(last)
        if self._clock() >= self._free_s and (chunk := self._next(self._next_chunk)) is not None:
            self._copy(chunk)
        with self._changed:
            answers, self._answers = self._answers, deque()
            endpoints = self._copies.endpoints
        for sender, answer in answers:
            self._wire.answer(sender, answer)
        self._wire.keep(endpoints)

    def _wait_s(self) -> float:
        """Until there is something to do, unless something comes before."""
        with self._changed:
            if self._copies.has_last or self._answers:
                return 0.0
            return max(0.0, self._free_s - self._clock()) if self._copies.has_chunk else LOOK_S

    def _next(self, choose: Callable[[], Sending | Writing | None]) -> Sending | Writing | None:
        """What `choose` says, whose blocks are in use from now on."""
        with self._changed:
            chosen = choose()
            self._busy_with = None if chosen is None else chosen.message.move
        return chosen

    def _next_chunk(self) -> Sending | Writing | None:
        writes, self._writes_next = self._writes_next, not self._writes_next
        if writes:
            return self._copies.next_writing() or self._copies.next_sending(self._chunk_blocks())
        return self._copies.next_sending(self._chunk_blocks()) or self._copies.next_writing()

    def _copy(self, chosen: Sending | Writing) -> None:
        if isinstance(chosen, Sending):
            self._send(chosen)
        else:
            self._write(chosen)

    def _send(self, sending: Sending) -> None:
        payload: Payload = NO_BYTES
        if len(sending.blocks):
            with self._working() as began_s:
                payload = self._engine.export_blocks(sending.blocks)
                self._learn((self._work_clock() - began_s) / len(sending.blocks))
        self._wire.send(sending.to, sending.message, payload)
        self.num_sent_bytes += len(sending.blocks) * self._engine.block_bytes
        self._finish(None)

    def _write(self, writing: Writing) -> None:
        came = writing.came
        if len(writing.blocks):
            with self._working():
                self._engine.import_blocks(writing.blocks, came.payload)
        if not isinstance(came.message, Last):
            self._wire.answer(came.sender, Ack(came.message.move))
        with self._changed:
            self._copies.written(came.message)
        self._finish(Written(came.message))

    @contextmanager
    def _working(self) -> Iterator[float]:
        """The engine's memory is used in here; the next chunk waits in proportion to the work."""
        began_s = self._work_clock()
        with self._engine_use:
            yield began_s
        work_s = self._work_clock() - began_s
        self._free_s = max(self._free_s, self._clock()) + work_s * self._pause

    def _finish(self, news: News | None) -> None:
        """No block is in use any more. `news` of its move, unless that was forgotten meanwhile."""
        with self._changed:
            move, self._busy_with = self._busy_with, None
            self._report(news if move in self._copies.moves else None)
            self._changed.notify_all()

    def _report(self, news: News | None) -> None:
        if news is not None:
            self._news.append(news)
            self._tell()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What another thread changes in here wakes the copier."""
        with self._changed:
            yield
        self._wire.wake()

    def _chunk_blocks(self) -> int:
        most = MAX_CHUNK_BYTES // self._engine.block_bytes
        return max(1, min(most, int(CHUNK_S / self._block_s) if self._block_s else 1))

    def _learn(self, block_s: float) -> None:
        self._block_s += (block_s - self._block_s) * (FADING if self._block_s else 1.0)
