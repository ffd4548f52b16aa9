"""The router: which instance gets a request, by the policy of the settings.

Owns the loads of the instances and what each of them was sent. The scheduler model's streams thread calls it:
the submissions ask and say what they did, and heartbeats are passed on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from python_backends.cluster.policies import policy_of
from python_backends.cluster.policies.policy import Candidates, Pair
from python_backends.cluster.prefixes import SentPrefixes
from python_backends.nouns.instance_load import Demand, InstanceLoad
from python_backends.nouns.request import ModelLimits, Request
from python_backends.settings import ClusterSettings
from python_backends.streams.stream import Stream


class Router:
    def __init__(self, settings: ClusterSettings) -> None:
        self.num_dispatches: dict[int, int] = {}  # by instance
        self._num_dispatched = 0  # to all of them
        self.policy = policy_of(settings)
        self.draining: frozenset[int] = frozenset()  # instances that get no request
        self._loads: dict[int, InstanceLoad] = {}  # by instance, of those that are ready
        self._prefixes: SentPrefixes | None = None  # no instance has been ready yet

    def ready(self, instance: int, limits: ModelLimits) -> None:
        """The instance holds nothing and takes requests."""
        self._loads[instance] = InstanceLoad(instance, limits)
        if self._prefixes is None:
            self._prefixes = SentPrefixes(limits.block_tokens, limits.num_blocks)
        self.num_dispatches.setdefault(instance, 0)

    def lost(self, instance: int) -> None:
        if self._loads.pop(instance, None) is not None and self._prefixes is not None:
            self._prefixes.lost(instance)

    def heard(self, load: InstanceLoad) -> None:
        """Ignored of an instance that is not ready."""
        if (before := self._loads.get(load.number)) is not None:
            self._loads[load.number] = load.following(before)

    def load(self, instance: int) -> InstanceLoad:
        """Of an instance that is ready, at present."""
        return self._loads[instance]

    @property
    def loads(self) -> list[InstanceLoad]:
        """Of all instances that are ready."""
        return list(self._loads.values())

    @property
    def takers(self) -> list[InstanceLoad]:
        """Of those that get requests."""
        return [load for number, load in self._loads.items() if number not in self.draining]

    def find_pairs(self) -> list[Pair]:
        """Between which instances a running request should move now."""
        find = self.policy.find_pairs
        return find(self.takers) if find is not None else []

    def freeness(self, instance: int) -> float:
        """Tokens per request; 0 of an instance that is not ready."""
        load = self._loads.get(instance)
        return self.freeness_of(load) if load is not None else 0.0

    def freeness_of(self, load: InstanceLoad) -> float:
        """Tokens per request; of an instance that is to be empty, none at all."""
        if load.number in self.draining:
            return -math.inf
        return load.freeness_with_headroom if self.policy.keeps_headroom else load.freeness

    def step_s(self, instance: int) -> float:
        """What a step takes there at present; 0: not known."""
        load = self._loads.get(instance)
        return load.said.step_s if load is not None else 0.0

    def prefix_keys(self, request: Request) -> list[bytes] | None:
        """Of the blocks of its prompt, if the policy looks at them; None before an instance has been ready.
        Any thread may ask: this takes some 20 ms for 100,000 tokens.
        """
        if not self.policy.sees_prefixes:
            return []
        return None if self._prefixes is None else self._prefixes.keys(request)

    def choose(self, stream: Stream, allowed: Sequence[int]) -> int | None:
        """One of the instances `allowed`, unless none of them gets requests."""
        loads = [self._loads[each] for each in allowed if each in self._loads and each not in self.draining]
        if not loads:
            return None
        assert self._prefixes is not None, "an instance with a place has been ready"
        num_found = self._prefixes.num_found_tokens(self._keys_of(stream))
        candidates = Candidates(
            loads, stream.num_tokens, num_found, stream.request.priority, self._num_dispatched
        )
        return self.policy.choose(candidates).number

    def submitted(self, stream: Stream, instance: int, number: int) -> None:
        assert self._prefixes is not None, "the instance has been ready"
        keys, num_tokens = self._keys_of(stream), stream.num_tokens
        num_found = self._prefixes.num_found_tokens(keys).get(instance, 0)
        demand = Demand(num_tokens, num_tokens - num_found, stream.request.priority)
        self._loads[instance] = self._loads[instance].submitted(number, demand)
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
