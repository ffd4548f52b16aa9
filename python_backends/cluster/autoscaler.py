"""When there should be one instance more, or one less: by the average freeness of those that take requests.

Source: Llumnix (OSDI 2024, arXiv 2406.03243), section 4.4.3. Pure: the clock is given, and nothing is started
or ended here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from python_backends.nouns.instance_load import HEADROOM_TOKENS, InstanceLoad, freeness, headroom
from python_backends.settings import ClusterSettings

LOOK_EVERY_S = 0.05  # a look at 64 instances takes a quarter of a millisecond
CHANGE_AFTER_S = 10.0  # out of its bounds: a burst that is over when a new instance is ready needs none


def average_freeness(
    loads: Sequence[InstanceLoad], of: Callable[[InstanceLoad], float], most: float
) -> float:
    """The mean of the freeness `of` each instance, in tokens per request; each counts as −`most` to `most`.

    An idle instance has all its memory for one request, and a shortfall is that of all requests together:
    either could be larger than everything else by orders, and one instance would decide alone. An instance
    without requests counts as `most`, however small its memory is. `loads` is not empty.
    """
    counted = [most if not load.num_requests else max(-most, min(most, of(load))) for load in loads]
    return sum(counted) / len(counted)


def fewest_requests(loads: Sequence[InstanceLoad]) -> InstanceLoad:
    """If several have as few, the one with the highest number. `loads` is not empty."""
    return min(loads, key=lambda load: (load.num_requests, -load.number))


class Autoscaler:
    """Owns since when the average has been too low or too high."""

    def __init__(
        self,
        settings: ClusterSettings,
        freeness_of: Callable[[InstanceLoad], float],
        clock: Callable[[], float],
    ) -> None:
        """`freeness_of`: in tokens per request; `clock` returns monotonic seconds."""
        self._settings = settings
        self._freeness_of = freeness_of
        self._clock = clock
        self._direction = 0  # in which the average is out of its bounds
        self._since_s = 0.0
        self._looked_s = -math.inf

    def decide(self, takers: Sequence[InstanceLoad], num_instances: int, is_changing: bool) -> int:
        """How many instances there should be more: 1, 0 or −1. `takers`: the instances that take requests, of
        `num_instances`; `is_changing`: one of these is being started or emptied.
        """
        if is_changing or not takers:
            self._direction = 0
            return 0
        if num_instances < self._settings.instances:
            return 1
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return 0
        self._looked_s = now_s
        wanted = self._wanted(takers, num_instances)
        if wanted != self._direction:
            self._direction, self._since_s = wanted, now_s
        if now_s - self._since_s < CHANGE_AFTER_S:
            return 0
        self._direction = 0
        return wanted

    def _wanted(self, takers: Sequence[InstanceLoad], num_instances: int) -> int:
        """What `look` says if it stays so."""
        settings = self._settings
        average = average_freeness(takers, self._freeness_of, 2.0 * settings.scale_down_tokens)
        if average < settings.scale_up_tokens:
            return int(num_instances < settings.max_instances)
        if average <= settings.scale_down_tokens or num_instances <= settings.instances:
            return 0
        # one that takes no requests ends first
        is_spare = len(takers) < num_instances or (len(takers) > 1 and self._others_suffice(takers))
        return -int(is_spare)

    def _others_suffice(self, takers: Sequence[InstanceLoad]) -> bool:
        """Whether the others, with the requests of the one that would be ended, still had a free slot each,
        and a freeness at which no instance is started: else it would come back at once.
        """
        num_requests = sum(load.num_requests for load in takers)
        if not num_requests:
            return True
        leaving = fewest_requests(takers)
        memory = sum(load.limits.kv_tokens for load in takers if load is not leaving)
        virtual = [float(load.used_tokens + load.waiting_tokens) for load in takers]
        virtual += [
            headroom(load.limits.kv_tokens, HEADROOM_TOKENS) for load in takers if load.num_high_priority
        ]
        num_free_slots = sum(load.num_free_slots for load in takers) - leaving.limits.num_slots
        left = freeness(memory, virtual, num_requests)
        return num_free_slots >= len(takers) - 1 and left >= self._settings.scale_up_tokens
