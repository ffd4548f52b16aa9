"""The router: which instance gets a request, by the policy of the settings.

Owns the views of the instances and what each of them was sent. The scheduler model's streams thread calls it:
the submissions ask and say what they did, and heartbeats are passed on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from python_backends.cluster.freeness import freeness_of
from python_backends.cluster.policies import POLICIES
from python_backends.cluster.policies.policy import Candidate, Dispatch, Pair, Thresholds
from python_backends.cluster.prefixes import SentPrefixes
from python_backends.cluster.views import Demand, InstanceView
from python_backends.nouns.messages import Load
from python_backends.nouns.request import ModelLimits
from python_backends.settings import ClusterSettings
from python_backends.streams.stream import Stream


class Router:
    def __init__(self, settings: ClusterSettings) -> None:
        self.num_dispatches: dict[int, int] = {}  # by instance
        self.policy = settings.policy
        self._policy = POLICIES[settings.policy]
        self._headroom_tokens = settings.priority_headroom_tokens
        self._thresholds = Thresholds(settings.low_tokens, settings.priority_headroom_tokens)
        self.draining: frozenset[int] = frozenset()  # instances that get no request
        self._views: dict[int, InstanceView] = {}
        self._prefixes: SentPrefixes | None = None  # no instance has been ready yet

    def ready(self, instance: int, limits: ModelLimits) -> None:
        """The instance holds nothing and takes requests."""
        self._views[instance] = InstanceView(instance, limits)
        if self._prefixes is None:
            self._prefixes = SentPrefixes(limits.block_tokens, limits.num_blocks)
        self._prefixes.lost(instance)
        self.num_dispatches.setdefault(instance, 0)

    def lost(self, instance: int) -> None:
        self._views.pop(instance, None)

    def heard(self, instance: int, load: Load) -> None:
        if instance in self._views:
            self._views[instance].heard(load)

    @property
    def views(self) -> list[InstanceView]:
        """Of all instances that are ready."""
        return list(self._views.values())

    @property
    def takers(self) -> list[InstanceView]:
        """Of those that get requests."""
        return [view for number, view in self._views.items() if number not in self.draining]

    @property
    def moves_requests(self) -> bool:
        """Whether the policy moves requests."""
        return self._policy.find_pairs is not None

    @property
    def spares_ending(self) -> bool:
        """Whether requests that are about to end stay where they are."""
        return self._policy.spares_ending

    def find_pairs(self) -> list[Pair]:
        """Between which instances a running request should move now."""
        find = self._policy.find_pairs
        return find(self.takers, self._thresholds) if find is not None else []

    def freeness(self, instance: int) -> float:
        """Tokens per request; 0 of an instance that is not ready."""
        view = self._views.get(instance)
        return self.freeness_of(view) if view is not None else 0.0

    def freeness_of(self, view: InstanceView) -> float:
        """Tokens per request; of an instance that is to be empty, none at all."""
        if view.number in self.draining:
            return -math.inf
        return freeness_of(view, self._headroom_tokens)

    def step_s(self, instance: int) -> float:
        """What a step takes there at present; 0: not known."""
        view = self._views.get(instance)
        return view.load.step_s if view is not None else 0.0

    def choose(self, stream: Stream, allowed: Sequence[int]) -> int | None:
        """One of the instances `allowed`, unless none of them gets requests."""
        keys = self._keys(stream)
        takers = [number for number in allowed if number in self._views and number not in self.draining]
        candidates = [self._candidate(stream, keys, number) for number in takers]
        if not candidates:
            return None
        dispatch = Dispatch(sum(self.num_dispatches.values()), _num_tokens(stream), stream.request.priority)
        return self._policy.choose(candidates, dispatch).view.number

    def submitted(self, stream: Stream, instance: int, number: int) -> None:
        keys = self._keys(stream)
        demand = Demand(
            _num_tokens(stream), self._num_new_tokens(stream, keys, instance), stream.request.priority
        )
        self._views[instance].submitted(number, demand)
        self._sent(instance, keys)
        self.num_dispatches[instance] += 1

    def moved(self, stream: Stream, instance: int) -> None:
        """The blocks of the stream's prompt are sent to `instance`."""
        self._sent(instance, self._keys(stream))

    def _sent(self, instance: int, keys: list[bytes]) -> None:
        if self._prefixes is not None:
            self._prefixes.sent(instance, keys)

    def _candidate(self, stream: Stream, keys: list[bytes], instance: int) -> Candidate:
        view = self._views[instance]
        new_tokens = self._num_new_tokens(stream, keys, instance)
        return Candidate(view, new_tokens, freeness_of(view, self._headroom_tokens), freeness_of(view, None))

    def _num_new_tokens(self, stream: Stream, keys: list[bytes], instance: int) -> int:
        found = self._prefixes.num_found_tokens(instance, keys) if self._prefixes is not None else 0
        return _num_tokens(stream) - found

    def _keys(self, stream: Stream) -> list[bytes]:
        return self._prefixes.keys(stream.request) if self._prefixes is not None else []


def _num_tokens(stream: Stream) -> int:
    return len(stream.request.prompt) + len(stream.tokens)
