"""A policy of the cluster for tests, which want many moves: everything is at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from python_backends.cluster.policies.policy import Candidates, ClusterPolicy, Pair
from python_backends.moving.move import MoveReason
from python_backends.nouns.instance_load import InstanceLoad

SHUFFLE = "tests.support.shuffle:POLICY"


def shuffle(candidates: Candidates) -> InstanceLoad:
    return random.choice(candidates.loads)


def shuffled_pairs(loads: Sequence[InstanceLoad]) -> list[Pair]:
    """Two of the instances."""
    if len(loads) < 2:
        return []
    source, destination = random.sample(list(loads), 2)
    return [Pair(source, destination, MoveReason.SHUFFLE)]


POLICY = ClusterPolicy(shuffle, shuffled_pairs, balance_every_s=0.02, max_moves=4)
