"""The thread that reads adapters, so that the loop never does: it searches the directory, at once when it is
told that there is a new adapter, and loads what the loop wants. Made by `adapters`, which takes its news.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from python_backends.engine.protocol import BadAdapterError
from python_backends.instance.adapter_files import AdapterFiles
from python_backends.nouns.request import AdapterVersion

WATCH_S = 1.0  # the directory is searched so often: a search reads what has changed alone
START_S = 5.0  # older versions are read for so long before the instance is ready
SEARCH_S = 0.5  # new adapters are read for so long before what the loop wants is loaded
MOST_SHARE = 0.05  # of a processor, for looking at thousands of adapters that have not changed
SEARCH = "search"  # an order

log = logging.getLogger("gapless.instance")


@dataclass(frozen=True, slots=True)
class Listed:
    """What can be served now."""

    adapters: tuple[AdapterVersion, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    adapter: AdapterVersion
    weights: Any  # as the engine reads them


@dataclass(frozen=True, slots=True)
class NotLoaded:
    adapter: AdapterVersion
    error: str


News = Listed | Loaded | NotLoaded


class AdapterThread:
    """`wake`: what wakes the loop when there is news."""

    def __init__(self, files: AdapterFiles, wake: Callable[[], None], watch_s: float = WATCH_S) -> None:
        """Searches the directory once, in the caller's thread."""
        self._files = files
        self._wake = wake
        self._watch_s = watch_s
        self._orders: SimpleQueue[AdapterVersion | str | None] = SimpleQueue()
        self._news: SimpleQueue[News] = SimpleQueue()
        self.listed = files.search(START_S, is_start=True)
        self._thread = threading.Thread(target=self._run, name="adapters", daemon=True)
        self._thread.start()

    @property
    def has_news(self) -> bool:
        return not self._news.empty()

    def take(self) -> News:
        """The oldest news, if there is some."""
        return self._news.get_nowait()

    def load(self, adapter: AdapterVersion) -> None:
        """`Loaded` or `NotLoaded` will come."""
        self._orders.put(adapter)

    def search(self) -> None:
        """The directory, as soon as what was ordered before is done. Called by any thread."""
        self._orders.put(SEARCH)

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        last, due_s = self.listed, time.monotonic() + self._watch_s
        while True:
            wait_s = 0.0 if self._files.has_more else max(0.0, due_s - time.monotonic())
            try:
                order = self._orders.get(timeout=wait_s)
            except Empty:
                order = SEARCH
            if order is None:
                return
            if isinstance(order, AdapterVersion):
                self._tell(self._load(order))
                continue
            found = self._files.search(SEARCH_S)
            due_s = time.monotonic() + max(self._watch_s, self._files.look_s / MOST_SHARE)
            if found != last:
                last = found
                self._tell(Listed(found))

    def _load(self, adapter: AdapterVersion) -> News:
        try:
            return Loaded(adapter, self._files.load(adapter).weights)
        except BadAdapterError as error:
            log.warning("adapter %s can't be loaded: %s", adapter.full_name, error)
            return NotLoaded(adapter, str(error))
        except Exception as error:  # of memory, for example: one request must not end the thread
            log.exception("adapter %s can't be loaded", adapter.full_name)
            return NotLoaded(adapter, f"it can't be loaded ({type(error).__name__})")

    def _tell(self, news: News) -> None:
        self._news.put(news)
        self._wake()
