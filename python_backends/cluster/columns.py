"""What policies compare of the instances that take requests: an array for each figure, with a place for each
instance, so that a thousand instances are compared as fast as a few. Changed by the router.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from python_backends.cluster.freeness import freeness_at_peak, freeness_of
from python_backends.cluster.views import InstanceView

Doubles = NDArray[np.float64]
Places = NDArray[np.intp]


class Figures(NamedTuple):
    """Of one instance, or [n] of n of them. Tokens are those of KV blocks."""

    num_requests: Doubles  # that run or wait
    num_free_slots: Doubles  # after all requests that wait have got one
    free_tokens: Doubles  # after all requests that wait have what they need
    unpromised_tokens: Doubles  # see `InstanceView`
    tokens_to_compute: Doubles  # before the turn of a new request comes
    freeness: Doubles  # tokens per request, with headroom for requests of high priority
    freeness_base: Doubles  # without
    freeness_at_peak: Doubles  # the smaller of `freeness_base` and of that at the predicted peak of memory


class Columns:
    """Owns the figures of the instances of `views`; other instances have other columns."""

    def __init__(self, views: Sequence[InstanceView], headroom_tokens: int | None) -> None:
        """`headroom_tokens`: see `freeness_of`."""
        self._headroom_tokens = headroom_tokens
        self._numbers = [view.number for view in views]  # by place
        self._places = {number: place for place, number in enumerate(self._numbers)}
        self._figures = np.zeros((len(Figures._fields), len(views)))
        self._found: tuple[list[int], Places] = ([], np.zeros(0, np.intp))  # the latest `places`
        for view in views:
            self.changed(view)

    def changed(self, view: InstanceView) -> None:
        self._figures[:, self._places[view.number]] = (
            view.num_requests,
            view.num_free_slots,
            view.free_tokens,
            view.unpromised_tokens,
            view.tokens_to_compute,
            freeness_of(view, self._headroom_tokens),
            freeness_of(view, None),
            freeness_at_peak(view),
        )

    def places(self, instances: Sequence[int]) -> Places:
        """Of those of `instances` that are known."""
        if self._found[0] != instances:
            known = [self._places[each] for each in instances if each in self._places]
            self._found = (list(instances), np.array(known, np.intp))
        return self._found[1]

    def figures(self, places: Places) -> Figures:
        return Figures(*self._figures[:, places])

    def of_instances(self, values: Mapping[int, int], places: Places) -> Doubles:
        """The value of the instance at each of `places`; 0 of one that has none."""
        found = np.zeros(len(self._numbers))
        for instance in values.keys() & self._places.keys():
            found[self._places[instance]] = values[instance]
        return found[places]

    def number(self, place: int) -> int:
        """The instance at this place."""
        return self._numbers[place]


def least(*keys: Doubles) -> int:
    """The first place at which `keys` [n each] are least: if the first key is equal the second decides, and
    so on.
    """
    places = np.flatnonzero(keys[0] == keys[0].min())
    for key in keys[1:]:
        if len(places) == 1:
            break
        values = key[places]
        places = places[values == values.min()]
    return int(places[0])
