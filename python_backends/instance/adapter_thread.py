"""The thread that reads adapters, so that the loop never does: it searches the directory, and loads what the
loop wants. Made by `adapters`, which takes its news. Tested in tests/pure/test_adapters.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from python_backends.engine.protocol import BadAdapterError
from python_backends.instance.adapter_files import AdapterFiles
from python_backends.nouns.request import AdapterVersion

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

    def __init__(self, files: AdapterFiles, watch_s: float, wake: Callable[[], None]) -> None:
        """Searches the directory once, in the caller's thread."""
        self._files = files
        self._watch_s = watch_s
        self._wake = wake
        self._orders: SimpleQueue[AdapterVersion | None] = SimpleQueue()
        self._news: SimpleQueue[News] = SimpleQueue()
        self.listed = files.search()
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

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        last = self.listed
        while True:
            try:
                order = self._orders.get(timeout=self._watch_s)
            except Empty:
                found = self._files.search()
                if found != last:
                    last = found
                    self._tell(Listed(found))
                continue
            if order is None:
                return
            self._tell(self._load(order))

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
