"""A policy of the cluster for tests, which want many moves: everything is at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from python_backends.cluster.columns import Figures
from python_backends.cluster.policies.policy import Candidates, ClusterPolicy, Pair
from python_backends.cluster.views import InstanceView
from python_backends.moving.move import MoveReason

SHUFFLE = "tests.support.shuffle:POLICY"


def shuffle(candidates: Candidates) -> int:
    return random.randrange(len(candidates.num_new_tokens))


def shuffled_pairs(views: Sequence[InstanceView], figures: Figures) -> list[Pair]:
    """Two of the instances."""
    if len(views) < 2:
        return []
    source, destination = random.sample(list(views), 2)
    return [Pair(source, destination, MoveReason.SHUFFLE)]


POLICY = ClusterPolicy(shuffle, shuffled_pairs, balance_every_s=0.02, max_moves=4)
