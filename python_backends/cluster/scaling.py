"""Which instances should run: by an order, else by the load, else the number of the settings.

The launcher starts those that should run and ends the others. One that is to end is emptied before, like one
that an order empties. Called by the streams thread alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from python_backends.cluster.autoscaler import Autoscaler
from python_backends.cluster.router import Router
from python_backends.nouns.order import RefusedOrderError
from python_backends.settings import ClusterSettings
from python_backends.watching.cluster_state import ClusterState
from python_backends.watching.metrics import Metrics

log = logging.getLogger("gapless.scheduler")

LONGEST_START_S = 600.0  # server.ready_s by default: one that takes longer may never get ready


class Scaling:
    """Owns the sets of instances: those that should run (`wanted`), those of them that are being emptied
    for good (`leaving`), and those that should run no more but still have a session.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        router: Router,
        metrics: Metrics,
        state: ClusterState | None,
        clock: Callable[[], float],
    ) -> None:
        """`state`: of an earlier scheduler model; None: there was none."""
        state = state or ClusterState(frozenset(range(settings.instances)))
        self.wanted, self._drained, self._ordered = state.wanted, state.drained, state.ordered
        self.leaving: frozenset[int] = frozenset()
        self._settings = settings
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self._autoscaler = Autoscaler(settings, router.freeness_of, clock)
        self._missing_since_s: dict[int, float] = {}  # of those that should run and are not ready
        self._ending: set[int] = set()  # should run no more, but have a session
        self._was_said = False  # that the only instances that are ready are drained

    @property
    def state(self) -> ClusterState:
        return ClusterState(self.wanted, self._drained, self._ordered)

    @property
    def draining(self) -> frozenset[int]:
        """Instances that are to be empty, by an order or because there are too many."""
        return self._drained | self.leaving

    def drain(self, instance: int) -> None:
        """It is to be empty, but stays. Raises RefusedOrderError if no other gets requests."""
        takers, drained = self._router.takers, self._drained | {instance}
        if not takers:
            raise RefusedOrderError("no instance is ready that gets requests: wait until one is")
        if drained.issuperset(load.number for load in takers):
            last = f"instance {instance} is the last one that gets requests"
            raise RefusedOrderError(f"{last}: restore another first")
        self._drained = drained
        self._router.draining = self.draining

    def restore(self, instance: int) -> None:
        """It gets requests again. Raises RefusedOrderError if it is one too many."""
        self._drained -= {instance}
        self._router.draining = self.draining
        if instance in self.leaving:
            raise RefusedOrderError(f"instance {instance} is to be empty: it is one too many")

    def scale(self, num_instances: int | None) -> None:
        """So many should run; None: the load or the settings decide."""
        self._ordered = num_instances

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
        self._stop_leaving_if_none_takes()
        ended = [number for number in self.leaving if is_empty(number)]
        for number in ended:
            self._end(number)
        num_more = self._num_more()
        for _ in range(num_more):
            self._start_one()
        for _ in range(-num_more):
            self._begin_to_end_one()
        self._router.draining = self.draining
        return ended

    # --- inside

    def _stop_leaving_if_none_takes(self) -> None:
        """Those that leave get requests again where all others have been lost. Orders to drain stay."""
        ready = {load.number for load in self._router.loads}
        if not self._router.takers and self.leaving & (ready - self._drained):
            self.leaving = frozenset()
            self._router.draining = self.draining
        only_drained = bool(ready) and not self._router.takers
        if only_drained and not self._was_said:
            log.warning(
                "the only instances that are ready are drained by an order, so all requests wait: %s."
                " `control restore` lets one take them",
                sorted(ready),
            )
        self._was_said = only_drained

    def _num_more(self) -> int:
        """How many instances are missing; below 0: are too many. Those that leave do not count."""
        num_staying = len(self.wanted - self.leaving)
        if self._ordered is not None:
            return min(self._ordered, self._settings.most_instances) - num_staying
        if not self._settings.follows_load:
            return self._settings.instances - num_staying
        is_changing = bool(self.leaving) or self._is_one_started()
        return self._autoscaler.decide(self._router.takers, num_staying, is_changing)

    def _is_one_started(self) -> bool:
        """Whether one is not ready, and may still get ready."""
        now_s, since_s = self._clock(), self._missing_since_s
        missing = self.wanted - {load.number for load in self._router.loads}
        self._missing_since_s = {number: since_s.get(number, now_s) for number in missing}
        return any(now_s - each < LONGEST_START_S for each in self._missing_since_s.values())

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
            self.wanted |= {min(numbers)}
            self._count("up")

    def _begin_to_end_one(self) -> None:
        """Those that take no requests come first, then the one with the fewest."""
        takers = {load.number for load in self._router.takers}
        staying = self.wanted - self.leaving
        ends = min(staying, key=lambda number: (number in takers, self._num_requests(number), -number))
        self.leaving |= {ends}

    def _end(self, number: int) -> None:
        self.leaving -= {number}
        self.wanted -= {number}
        self._drained -= {number}  # a later instance of this number is another one
        if any(load.number == number for load in self._router.loads):
            self._ending.add(number)
        self._count("down")

    def _num_requests(self, number: int) -> int:
        """0 of one that is not ready."""
        return sum(load.num_requests for load in self._router.loads if load.number == number)

    def _count(self, direction: str) -> None:
        self._metrics.count("gapless_scalings_total", labels=(("direction", direction),))
