"""Adapters of an instance: the loop calls `step` once a turn, which installs what was loaded and asks for
what is wanted.

At most `max_loaded` are in the engine's memory. One that no sequence has makes place for a wanted one; while
there is none, the wanted one waits.
"""

from __future__ import annotations

from collections.abc import Callable

from python_backends.engine.protocol import TakesAdapters
from python_backends.instance.adapter_thread import AdapterThread, Listed, Loaded
from python_backends.nouns.messages import Failed
from python_backends.nouns.request import AdapterVersion
from python_backends.scheduling.slot_scheduler import SlotScheduler


class InstanceAdapters:
    """`show`: is called with what can be asked for, whenever that has changed."""

    def __init__(
        self,
        scheduler: SlotScheduler,
        engine: TakesAdapters,
        thread: AdapterThread,
        max_loaded: int,
        show: Callable[[tuple[AdapterVersion, ...]], None],
    ) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._thread = thread
        self._max_loaded = max_loaded
        self._show = show
        self._ordered: AdapterVersion | None = None  # the thread loads it
        self._loaded: Loaded | None = None  # waits until another one can be dropped
        scheduler.adapters.serve()
        show(thread.listed)

    @property
    def has_news(self) -> bool:
        """Whether `step` would take something that has come."""
        return self._thread.has_news

    @property
    def is_loading(self) -> bool:
        return self._ordered is not None

    def step(self) -> list[Failed]:
        """Before the next plan. Returns the requests whose adapter can't be loaded; they have ended here."""
        failed = self._take_news() if self._thread.has_news else []
        if self._loaded is not None:
            self._install(self._loaded)
        wanted = self._scheduler.adapters.wanted
        if wanted is not None and self._ordered is None and self._loaded is None:
            self._ordered = wanted
            self._thread.load(wanted)
        return failed

    def search(self) -> None:
        """At once: there is a new adapter in the directory. Called by any thread."""
        self._thread.search()

    def close(self) -> None:
        self._thread.close()

    def _take_news(self) -> list[Failed]:
        news = self._thread.take()
        if isinstance(news, Listed):
            self._show(news.adapters)
            return []
        self._ordered = None
        if isinstance(news, Loaded):
            self._loaded = news
            return []
        error = f"lora_name = {news.adapter.full_name!r}: {news.error}"
        return self._scheduler.fail_waiting(news.adapter, error)

    def _install(self, loaded: Loaded) -> None:
        adapters, digest = self._scheduler.adapters, loaded.adapter.digest
        if adapters.num_loaded >= self._max_loaded:
            unused = adapters.unused(self._scheduler.first_running)
            if unused is None:
                return
            adapters.remove(unused)
            self._engine.drop_adapter(unused)
        self._engine.install_adapter(digest, loaded.weights)
        self._scheduler.adapter_loaded(digest)
        self._loaded = None
