"""At random: for tests, which want many moves.

Tested in tests/pure/test_moves.py and tests/server/test_shuffle.py.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from python_backends.cluster.columns import Figures
from python_backends.cluster.move import MoveReason
from python_backends.cluster.policies.policy import Candidates, Pair
from python_backends.cluster.views import InstanceView


def shuffle(candidates: Candidates) -> int:
    return random.randrange(len(candidates.num_new_tokens))


def shuffled_pairs(views: Sequence[InstanceView], figures: Figures, low_tokens: int) -> list[Pair]:
    """Two of the instances."""
    if len(views) < 2:
        return []
    source, destination = random.sample(list(views), 2)
    return [Pair(source, destination, MoveReason.SHUFFLE)]
