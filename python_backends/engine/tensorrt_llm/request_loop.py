"""Requests under way in an engine that is asked through asyncio: an event loop on a thread of its own, one
task a request.

Owns that thread and what is known of each request from its submission until the engine has let go of it. The
engine's tokens of one iteration wake their tasks in one tick of the loop; they go over together to the thread
of the instance, which calls `operate` and `collect`. Every request ends here in one of three ways: its last
token, a SlotFailure, or the engine's death, which `collect` raises.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from python_backends.engine.tensorrt_llm.open_request import News, Response, Row, Token
from python_backends.nouns.step import Admit, Release, SlotFailure, SlotOperation

log = logging.getLogger("gapless.engine")
T = TypeVar("T")

MAX_REFUSED = 3
WATCH_EVERY_S = 1.0
# of silence: a request is lost; if nothing is heard of any, the engine is dead. Far longer than any step
LOST_AFTER_S = 120.0
ABORT_LOST_AFTER_S = 5.0  # TensorRT-LLM never answers an abort of a request that it has not begun with


class EngineDeadError(RuntimeError):
    """The engine can't go on with any request."""


class Interface(Protocol):
    """The engine's own calls. All of them are made on the loop's thread."""

    request_errors: tuple[type[Exception], ...]  # these fail one request, any other the engine

    def submit(self, admit: Admit) -> AsyncIterator[Any]: ...

    def read(self, result: Any) -> Response:
        """What is new in `result`, which the next response changes."""

    def abort(self, result: Any) -> None: ...


class RequestLoop:
    """A request that was released is aborted."""

    def __init__(self, interface: Interface) -> None:
        self._interface = interface
        self._watch_every_s = min(WATCH_EVERY_S, LOST_AFTER_S / 4)
        self._watch_s = time.monotonic()  # when it is due
        self._rows: dict[int, Row] = {}  # by slot
        self._heard_s = time.monotonic()  # when the engine last said something of any request
        self._gathered: list[News] = []  # in this tick
        self._refused: list[tuple[Row, str]] = []  # in this tick
        self._is_gathering = False
        self._num_refused = 0  # one after the other, without a token of any request in between
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

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """What it returns. Raises what it raises, or TimeoutError."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

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
        self._loop.set_exception_handler(
            lambda _, context: self._die(context.get("exception") or RuntimeError(context["message"]))
        )
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
        now_s = time.monotonic()
        if not self._rows:
            self._heard_s = now_s  # there was nothing to say before
        row = Row(admit.slot, admit.slot_generation, admit.sampling, admit.num_output_tokens, now_s)
        try:
            row.result = self._interface.submit(admit)
        except self._interface.request_errors as error:
            self._fail(row, str(error))
            return
        self._rows[row.slot] = row
        row.task = self._loop.create_task(self._follow(row))

    def _release(self, release: Release) -> None:
        row = self._rows.get(release.slot)
        if row is None or row.slot_generation != release.slot_generation or row.is_released:
            return  # the engine was faster
        row.is_released, row.heard_s = True, time.monotonic()
        self._interface.abort(row.result)

    async def _follow(self, row: Row) -> None:
        """Until the engine has let go of it. Nothing else says so: an abort is not acknowledged."""
        try:
            async for result in row.result:
                self._heard_s = row.heard_s = time.monotonic()
                response = self._interface.read(result)
                self._hear(row, response)
                if response.is_last:
                    break
            else:
                self._let_go(row, "the engine ended this request without saying so")
        except self._interface.request_errors as error:
            self._heard_s = time.monotonic()
            self._gather([])
            self._refused.append((row, str(error)))
        except Exception as error:
            self._die(error)

    def _hear(self, row: Row, response: Response) -> None:
        row.has_spoken, self._num_refused = True, 0
        if not (row.is_released or row.has_ended):
            self._gather(list(row.tokens(response)))
        if response.is_last:
            self._let_go(
                row, f"the engine ended this request after {row.num_output} tokens ({response.reason})"
            )

    def _let_go(self, row: Row, why: str) -> None:
        """The engine has freed everything of this request. A request that had not ended before has failed."""
        if row.is_gone:
            return
        row.is_gone = True
        self._rows.pop(row.slot, None)
        if row.has_ended or row.is_released:
            self._gather([Release(row.slot, row.slot_generation)])
        else:
            self._fail(row, why)

    def _fail(self, row: Row, why: str) -> None:
        row.has_ended = True
        self._gather(
            [SlotFailure(row.slot, row.slot_generation, why), Release(row.slot, row.slot_generation)]
        )

    def _gather(self, news: list[News]) -> None:
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_soon(self._hand_over)  # runs after all tasks that this tick wakes
        self._gathered += news

    def _hand_over(self) -> None:
        self._judge()
        gathered, self._gathered, self._is_gathering = self._gathered, [], False
        if gathered:
            self._news.put(gathered)

    def _judge(self) -> None:
        """Requests that the engine refused in this tick fail alone; but if all requests that it worked on
        fail, the engine itself has failed.
        """
        refused, self._refused = self._refused, []
        self._num_refused += len(refused)
        others = [
            row for row in self._rows.values() if row.has_spoken and row not in [one for one, _ in refused]
        ]
        if len(refused) > 1 and len({why for _, why in refused}) == 1 and not others:
            self._die(RuntimeError(f"it failed all {len(refused)} requests at once: {refused[0][1]}"))
        elif self._num_refused >= MAX_REFUSED:
            self._die(
                RuntimeError(
                    f"it failed {self._num_refused} requests without a token in between: {refused[-1][1]}"
                )
            )
        for row, why in refused:
            self._let_go(row, why)

    def _die(self, error: Exception) -> None:
        log.error("the engine is dead: %r", error)
        self._news.put(error)

    def _watch(self) -> None:
        """Looks for ends that are lost. A request that was aborted: its slot is free even without an answer.
        A request that the engine has never reported: it waits in the engine's own queue. Any other request
        fails and is aborted. An engine that reports no request at all is dead.
        """
        now_s = time.monotonic()
        self._forgive(now_s - self._watch_s)
        silent = [row for row in self._rows.values() if now_s - row.heard_s > self._patience_s(row)]
        if now_s - self._heard_s > LOST_AFTER_S and not all(row.is_released for row in silent):
            self._die(TimeoutError(f"nothing came for {LOST_AFTER_S:g} s"))
            return
        for row in silent:
            if not (row.has_spoken or row.is_released):
                self._wait_on(row, now_s)
                continue
            log.warning(
                "slot %d: the end of its request was lost; it is free after %.1f s of silence",
                row.slot,
                now_s - row.heard_s,
            )
            if not row.is_released:
                self._interface.abort(row.result)
            self._let_go(row, f"the engine has lost this request: nothing came for {LOST_AFTER_S:g} s")
        self._watch_s = now_s + self._watch_every_s
        self._loop.call_later(self._watch_every_s, self._watch)

    def _wait_on(self, row: Row, now_s: float) -> None:
        log.warning(
            "slot %d: the engine has not begun with its request for %.1f s; it waits",
            row.slot,
            now_s - row.heard_s,
        )
        row.heard_s = now_s

    def _forgive(self, late_s: float) -> None:
        """Silence while this process stood still does not count."""
        if late_s > self._watch_every_s:
            self._heard_s += late_s
            for row in self._rows.values():
                row.heard_s += late_s

    def _patience_s(self, row: Row) -> float:
        return min(ABORT_LOST_AFTER_S, LOST_AFTER_S) if row.is_released else LOST_AFTER_S
