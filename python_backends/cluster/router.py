"""The router: which instance gets a request, by the policy of the settings.

Owns the views of the instances and what each of them was sent. The scheduler model's streams thread calls it:
the submissions ask and say what they did, and heartbeats are passed on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from python_backends.cluster.columns import Columns
from python_backends.cluster.freeness import HEADROOM_TOKENS, freeness_of
from python_backends.cluster.policies import policy_of
from python_backends.cluster.policies.policy import Candidates, Pair
from python_backends.cluster.prefixes import SentPrefixes
from python_backends.cluster.views import Demand, InstanceView
from python_backends.nouns.messages import Load
from python_backends.nouns.request import ModelLimits, Request
from python_backends.settings import ClusterSettings
from python_backends.streams.stream import Stream


class Router:
    def __init__(self, settings: ClusterSettings) -> None:
        self.num_dispatches: dict[int, int] = {}  # by instance
        self._num_dispatched = 0  # to all of them
        self.policy_name = settings.policy
        self.policy = policy_of(settings)
        self.headroom_tokens = HEADROOM_TOKENS if self.policy.keeps_headroom else None
        self.draining: frozenset[int] = frozenset()  # instances that get no request
        self._views: dict[int, InstanceView] = {}
        self._columns = Columns([], self.headroom_tokens)
        self._prefixes: SentPrefixes | None = None  # no instance has been ready yet

    def ready(self, instance: int, limits: ModelLimits) -> None:
        """The instance holds nothing and takes requests."""
        self._views[instance] = InstanceView(instance, limits)
        if self._prefixes is None:
            self._prefixes = SentPrefixes(limits.block_tokens, limits.num_blocks)
        self._columns = Columns(self.views, self.headroom_tokens)
        self.num_dispatches.setdefault(instance, 0)

    def lost(self, instance: int) -> None:
        if self._views.pop(instance, None) is not None and self._prefixes is not None:
            self._prefixes.lost(instance)
            self._columns = Columns(self.views, self.headroom_tokens)

    def heard(self, instance: int, load: Load) -> None:
        if instance in self._views:
            view = self._views[instance]
            view.heard(load)
            self._columns.changed(view)

    @property
    def views(self) -> list[InstanceView]:
        """Of all instances that are ready."""
        return list(self._views.values())

    @property
    def takers(self) -> list[InstanceView]:
        """Of those that get requests."""
        return [view for number, view in self._views.items() if number not in self.draining]

    def find_pairs(self) -> list[Pair]:
        """Between which instances a running request should move now."""
        find = self.policy.find_pairs
        takers = self.takers
        if find is None or not takers:
            return []
        figures = self._columns.figures(self._columns.places([view.number for view in takers]))
        return find(takers, figures)

    def freeness(self, instance: int) -> float:
        """Tokens per request; 0 of an instance that is not ready."""
        view = self._views.get(instance)
        return self.freeness_of(view) if view is not None else 0.0

    def freeness_of(self, view: InstanceView) -> float:
        """Tokens per request; of an instance that is to be empty, none at all."""
        if view.number in self.draining:
            return -math.inf
        return freeness_of(view, self.headroom_tokens)

    def step_s(self, instance: int) -> float:
        """What a step takes there at present; 0: not known."""
        view = self._views.get(instance)
        return view.load.step_s if view is not None else 0.0

    def prefix_keys(self, request: Request) -> list[bytes] | None:
        """Of the blocks of its prompt, if the policy looks at them; None before an instance has been ready.
        Any thread may ask: this takes some 20 ms for 100,000 tokens.
        """
        if not self.policy.sees_prefixes:
            return []
        return None if self._prefixes is None else self._prefixes.keys(request)

    def choose(self, stream: Stream, allowed: Sequence[int]) -> int | None:
        """One of the instances `allowed`, unless none of them gets requests."""
        if self.draining:
            allowed = [each for each in allowed if each not in self.draining]
        places = self._columns.places(allowed)
        if not len(places):
            return None
        assert self._prefixes is not None, "an instance with a place has been ready"
        num_tokens = stream.num_tokens
        num_found = self._prefixes.num_found_tokens(self._keys_of(stream))
        num_new_tokens = num_tokens - self._columns.of_instances(num_found, places)
        figures = self._columns.figures(places)
        candidates = Candidates(
            figures, num_new_tokens, num_tokens, stream.request.priority, self._num_dispatched
        )
        return self._columns.number(int(places[self.policy.choose(candidates)]))

    def submitted(self, stream: Stream, instance: int, number: int) -> None:
        assert self._prefixes is not None, "the instance has been ready"
        keys, num_tokens = self._keys_of(stream), stream.num_tokens
        num_found = self._prefixes.num_found_tokens(keys).get(instance, 0)
        view = self._views[instance]
        view.submitted(number, Demand(num_tokens, num_tokens - num_found, stream.request.priority))
        self._columns.changed(view)
        self._prefixes.sent(instance, keys)
        self.num_dispatches[instance] += 1
        self._num_dispatched += 1

    def moved(self, stream: Stream, instance: int) -> None:
        """The blocks of the stream's prompt are sent to `instance`."""
        assert self._prefixes is not None, "the instance has been ready"
        self._prefixes.sent(instance, self._keys_of(stream))

    def _keys_of(self, stream: Stream) -> list[bytes]:
        """They are made once for each stream."""
        if stream.prefix_keys is None:
            stream.prefix_keys = self.prefix_keys(stream.request)
        assert stream.prefix_keys is not None, "an instance has been ready"
        return stream.prefix_keys
