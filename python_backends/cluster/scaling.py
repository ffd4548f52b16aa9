"""Which instances should run: by an order, else by the load, else the number of the settings.

The launcher starts those that should run and ends the others. One that is to end is emptied before, like one
that an order empties. Called by the streams thread alone.
"""

from __future__ import annotations

from collections.abc import Callable

from python_backends.cluster.autoscaler import Autoscaler
from python_backends.cluster.router import Router
from python_backends.settings import ClusterSettings
from python_backends.watching.metrics import Metrics


class Scaling:
    """Owns three sets of instances: those that should run (`wanted`), those of them that are being emptied
    for good (`leaving`), and those that should run no more but still have a session.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        router: Router,
        metrics: Metrics,
        wanted: frozenset[int] | None,
        clock: Callable[[], float],
    ) -> None:
        """`wanted`: what an earlier scheduler model has said; None: nothing is known of one."""
        self.wanted = wanted or frozenset(range(settings.instances))
        self.leaving: frozenset[int] = frozenset()
        self._settings = settings
        self._router = router
        self._metrics = metrics
        self._autoscaler = Autoscaler(settings, router.freeness_of, clock)
        self._drained: frozenset[int] = frozenset()
        self._ordered: int | None = None
        self._ending: set[int] = set()  # should run no more, but have a session

    def order(self, drained: frozenset[int], num_instances: int | None) -> None:
        """`drained` are to be empty, but stay; `num_instances`: so many should run; None: no order says how
        many.
        """
        self._drained, self._ordered = drained, num_instances
        self._router.draining = drained | self.leaving

    def ready(self, instance: int) -> None:
        """There is a session with it."""
        if instance not in self.wanted:
            self._ending.add(instance)

    def lost(self, instance: int) -> None:
        """There is no session with it any more."""
        self._ending.discard(instance)

    def decide(self, is_empty: Callable[[int], bool]) -> list[int]:
        """Decides, and returns the instances that should run no more from now on. `is_empty`: whether no
        request needs this instance.
        """
        ended = [number for number in self.leaving if is_empty(number)]
        for number in ended:
            self._end(number)
        num_more = self._num_more()
        for _ in range(num_more):
            self._start_one()
        for _ in range(-num_more):
            self._begin_to_end_one()
        self._router.draining = self._drained | self.leaving
        return ended

    # --- inside

    def _num_more(self) -> int:
        """How many instances are missing; below 0: are too many. Those that leave do not count."""
        num_staying = len(self.wanted - self.leaving)
        if self._ordered is not None:
            return min(self._ordered, self._settings.most_instances) - num_staying
        if not self._settings.follows_load:
            return self._settings.instances - num_staying
        ready = {view.number for view in self._router.views}
        is_changing = bool(self.leaving) or not self.wanted <= ready
        return self._autoscaler.decide(self._router.takers, num_staying, is_changing)

    def _start_one(self) -> None:
        """One that leaves stays, if there is one. A number comes again only when its last process is known to
        be gone.
        """
        if self.leaving:
            stays = max(self.leaving, key=lambda number: (self._num_requests(number), -number))
            self.leaving -= {stays}
            return
        numbers = set(range(self._settings.most_instances)) - self.wanted - self._ending
        if numbers:
            self.wanted |= {min(numbers, key=lambda number: (number in self._drained, number))}
            self._count("up")

    def _begin_to_end_one(self) -> None:
        """Those that take no requests come first, then the one with the fewest."""
        takers = {view.number for view in self._router.takers}
        staying = self.wanted - self.leaving
        ends = min(staying, key=lambda number: (number in takers, self._num_requests(number), -number))
        self.leaving |= {ends}

    def _end(self, number: int) -> None:
        self.leaving -= {number}
        self.wanted -= {number}
        if any(view.number == number for view in self._router.views):
            self._ending.add(number)
        self._count("down")

    def _num_requests(self, number: int) -> int:
        """0 of one that is not ready."""
        return sum(view.num_requests for view in self._router.views if view.number == number)

    def _count(self, direction: str) -> None:
        self._metrics.count("gapless_scalings_total", labels=(("direction", direction),))
