"""Requests under way in an engine that is asked through asyncio: an event loop on a thread of its own, one task a request.

Owns that thread and what is known of each request from its submission until the engine has let go of it. The engine's tokens of one
iteration wake their tasks in one tick of the loop; they go over together to the thread of the instance, which calls `operate` and
`collect`. Every request ends here in one of three ways: its last token, a SlotFailure, or the engine's death, which `collect` raises.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from python_backends.request import Finish, Sampling
from python_backends.step import Admit, Release, SlotFailure, SlotOperation

log = logging.getLogger("gapless.engine")

ENDS = {"stop": Finish.STOP, "length": Finish.LENGTH}
WATCH_EVERY_S = 1.0
ABORT_LOST_AFTER_S = 5.0  # TensorRT-LLM never answers an abort of a request that it has not begun with


class EngineDeadError(RuntimeError):
    """The engine can't go on with any request."""


@dataclass(frozen=True, slots=True)
class Response:
    """What one response of the engine brings for one request."""

    tokens: list[int]
    scores: list[Any]  # of these tokens; empty if they were not asked for
    is_last: bool
    reason: str = ""  # why it ended: stop, length or another word of the engine
    stop_id: int = -1  # the id that ended it; −1: the engine doesn't say which


class Interface(Protocol):
    """The engine's own calls. All of them are made on the loop's thread."""

    request_errors: tuple[type[Exception], ...]  # these fail one request, any other the engine

    def submit(self, admit: Admit) -> AsyncIterator[Any]: ...

    def read(self, result: Any) -> Response:
        """What is new in `result`, which the next response changes."""

    def abort(self, result: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Token:
    slot: int
    epoch: int
    token: int
    finish: Finish
    num_top: int = 0
    score: Any = None  # as the engine gives it; None: not asked for


News = Token | SlotFailure | Release


@dataclass(slots=True, eq=False)
class _Row:
    """One request, from its submission until the engine has let go of it. The loop's thread is its only writer."""

    slot: int
    epoch: int
    sampling: Sampling
    num_output: int
    heard_s: float  # when the engine last said something of it
    result: Any = None
    task: Any = None
    has_ended: bool = False  # for whoever asked: its last token or its failure has gone out
    is_released: bool = False  # by the scheduler: nobody wants its tokens any more
    is_aborted: bool = False
    is_gone: bool = False  # we have stopped listening

    def tokens(self, response: Response) -> Iterator[Token]:
        """Its new tokens up to and with the one that ends it."""
        ids = self._with_stop_id(response)
        ends = ENDS.get(response.reason, Finish.RUNNING) if response.is_last else Finish.RUNNING
        scores = response.scores if self.sampling.log_probs else []
        for i, token in enumerate(ids):
            self.num_output += 1
            finish = self._finish(token) or (ends if i == len(ids) - 1 else Finish.RUNNING)
            score = scores[i] if i < len(scores) else None
            yield Token(self.slot, self.epoch, token, finish, self.sampling.num_top_log_probs, score)
            if finish != Finish.RUNNING:
                self.has_ended = True
                return

    def _with_stop_id(self, response: Response) -> list[int]:
        """Some engines leave the id that ended the answer out of its tokens; streams have it as their last."""
        ids, stop_ids = response.tokens, self.sampling.stop_ids
        if not response.is_last or response.reason != "stop" or not stop_ids or (ids and ids[-1] in stop_ids):
            return ids
        return [*ids, response.stop_id if response.stop_id >= 0 else stop_ids[0]]

    def _finish(self, token: int) -> Finish:
        if token in self.sampling.stop_ids and self.num_output > self.sampling.min_tokens:
            return Finish.STOP
        return Finish.LENGTH if self.num_output >= self.sampling.max_tokens else Finish.RUNNING


class RequestLoop:
    """`aborts`: whether a request that was released is aborted, or runs to its end. `lost_after_s`: see `_watch`."""

    def __init__(self, interface: Interface, aborts: bool, lost_after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interface = interface
        self._aborts = aborts
        self._lost_after_s = lost_after_s
        self._watch_every_s = min(WATCH_EVERY_S, lost_after_s / 4)
        self._watch_s = clock()  # when it is due
        self._clock = clock
        self._rows: dict[int, _Row] = {}  # by slot
        self._heard_s = clock()  # when the engine last said something of any request
        self._gathered: list[News] = []  # in this tick
        self._news: SimpleQueue[list[News] | Exception] = SimpleQueue()
        self._waiting: dict[int, deque[News]] = {}  # by slot: came, and was not collected yet
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="engine requests", daemon=True)
        self._thread.start()

    # --- the instance's thread

    def operate(self, operations: Sequence[SlotOperation]) -> None:
        if operations:
            self._loop.call_soon_threadsafe(self._operate, operations)

    def collect(self, wait_s: float) -> list[News]:
        """What has come, at most one token a slot; waits for at most `wait_s`. Raises EngineDeadError."""
        self._take(0.0 if self._waiting else wait_s)
        return [news for slot in list(self._waiting) for news in self._next(slot)]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _take(self, wait_s: float) -> None:
        try:
            batch = self._news.get(timeout=wait_s) if wait_s else self._news.get_nowait()
            while True:
                if isinstance(batch, Exception):
                    raise EngineDeadError(f"the engine is dead: {batch!r}") from batch
                for news in batch:
                    self._waiting.setdefault(news.slot, deque()).append(news)
                batch = self._news.get_nowait()
        except Empty:
            return

    def _next(self, slot: int) -> Iterator[News]:
        """The next token of a slot, and what came with it."""
        waiting = self._waiting[slot]
        yield waiting.popleft()
        while waiting and not isinstance(waiting[0], Token):
            yield waiting.popleft()
        if not waiting:
            del self._waiting[slot]

    # --- the loop's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._watch)
        self._loop.run_forever()
        for row in self._rows.values():
            row.task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _operate(self, operations: Sequence[SlotOperation]) -> None:
        try:
            for operation in operations:
                if isinstance(operation, Admit):
                    self._submit(operation)
                elif isinstance(operation, Release):
                    self._release(operation)
        except Exception as error:
            self._die(error)

    def _submit(self, admit: Admit) -> None:
        now_s = self._clock()
        if not self._rows:
            self._heard_s = now_s  # there was nothing to say before
        row = _Row(admit.slot, admit.epoch, admit.sampling, admit.num_output_tokens, now_s)
        try:
            row.result = self._interface.submit(admit)
        except self._interface.request_errors as error:
            self._fail(row, str(error))
            return
        self._rows[row.slot] = row
        row.task = self._loop.create_task(self._follow(row))

    def _release(self, release: Release) -> None:
        row = self._rows.get(release.slot)
        if row is None or row.epoch != release.epoch or row.is_released:
            return  # the engine was faster
        row.is_released, row.heard_s = True, self._clock()
        if self._aborts:
            row.is_aborted = True
            self._interface.abort(row.result)

    async def _follow(self, row: _Row) -> None:
        """Until the engine has let go of it. Nothing else says so: an abort is not acknowledged."""
        try:
            async for result in row.result:
                self._heard_s = row.heard_s = self._clock()
                response = self._interface.read(result)
                self._hear(row, response)
                if response.is_last:
                    break
            else:
                self._let_go(row, "the engine ended this request without saying so")
        except self._interface.request_errors as error:
            self._heard_s = self._clock()
            self._let_go(row, str(error))
        except Exception as error:
            self._die(error)

    def _hear(self, row: _Row, response: Response) -> None:
        if not (row.is_released or row.has_ended):
            self._gather(list(row.tokens(response)))
        if response.is_last:
            self._let_go(row, f"the engine ended this request after {row.num_output} tokens ({response.reason})")

    def _let_go(self, row: _Row, why: str) -> None:
        """The engine holds nothing of it any more. One that nobody has ended before has failed."""
        if row.is_gone:
            return
        row.is_gone = True
        self._rows.pop(row.slot, None)
        if row.has_ended or row.is_released:
            self._gather([Release(row.slot, row.epoch)])
        else:
            self._fail(row, why)

    def _fail(self, row: _Row, why: str) -> None:
        row.has_ended = True
        self._gather([SlotFailure(row.slot, row.epoch, why), Release(row.slot, row.epoch)])

    def _gather(self, news: list[News]) -> None:
        if news and not self._gathered:
            self._loop.call_soon(self._hand_over)  # runs behind all tasks that this tick wakes
        self._gathered += news

    def _hand_over(self) -> None:
        self._news.put(self._gathered)
        self._gathered = []

    def _die(self, error: Exception) -> None:
        log.error("the engine is dead: %r", error)
        self._news.put(error)

    def _watch(self) -> None:
        """Looks for ends that are lost. One that was aborted: its slot is free without. Another: it fails, and is aborted. An engine
        that says nothing of any request is dead.
        """
        now_s = self._clock()
        self._forgive(now_s - self._watch_s)
        silent = [row for row in self._rows.values() if now_s - row.heard_s > self._patience_s(row)]
        if now_s - self._heard_s > self._lost_after_s and not all(row.is_aborted for row in silent):
            self._die(TimeoutError(f"nothing came for {self._lost_after_s:g} s (tensorrt_llm.lost_after_s)"))
            return
        for row in silent:
            log.warning("slot %d: the end of its request was lost; it is free after %.1f s of silence", row.slot, now_s - row.heard_s)
            if not row.is_aborted:
                self._interface.abort(row.result)
            self._let_go(row, f"the engine has lost this request: nothing came for {self._lost_after_s:g} s")
        self._watch_s = now_s + self._watch_every_s
        self._loop.call_later(self._watch_every_s, self._watch)

    def _forgive(self, late_s: float) -> None:
        """While this process stood still nobody could be heard."""
        if late_s > self._watch_every_s:
            self._heard_s += late_s
            for row in self._rows.values():
                row.heard_s += late_s

    def _patience_s(self, row: _Row) -> float:
        return min(ABORT_LOST_AFTER_S, self._lost_after_s) if row.is_aborted else self._lost_after_s
