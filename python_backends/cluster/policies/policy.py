"""What a policy of the cluster decides on, and what it is: which instance gets a request, and between which
instances running requests move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from python_backends.cluster.move import MoveReason
from python_backends.cluster.views import InstanceView


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of the instances that a request may go to."""

    view: InstanceView
    num_new_tokens: int  # of the request, that would have to be computed there
    freeness: float  # tokens per request, with headroom for requests of high priority
    freeness_base: float  # without


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A request that needs an instance."""

    number: int  # requests that were dispatched before
    num_tokens: int  # prompt and answer so far
    priority: int


@dataclass(frozen=True, slots=True)
class Thresholds:
    """In tokens; see the settings of the same names."""

    low_tokens: int
    priority_headroom_tokens: int


class Pair(NamedTuple):
    """A request may move from one instance to another one."""

    source: InstanceView
    destination: InstanceView
    reason: MoveReason


# one of the candidates [at least one], which are in the order of their numbers
Choose = Callable[[Sequence[Candidate], Dispatch], Candidate]
# pairs of these instances; each is in one pair at most
FindPairs = Callable[[Sequence[InstanceView], Thresholds], list[Pair]]


@dataclass(frozen=True, slots=True)
class ClusterPolicy:
    choose: Choose
    find_pairs: FindPairs | None = None  # None: no request moves
    spares_ending: bool = False  # a request that is predicted to end soon does not move
