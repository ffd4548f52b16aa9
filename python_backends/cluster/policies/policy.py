"""What a policy of the cluster decides on, and what it is: which instance gets a request, and between which
instances running requests move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from python_backends.moving.move import MoveReason
from python_backends.nouns.instance_load import InstanceLoad


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The instances that a request may go to, at least one, in the order of their numbers."""

    loads: Sequence[InstanceLoad]
    num_tokens: int  # of the request: prompt and answer so far
    num_found_tokens: Mapping[int, int]  # by instance: of these, tokens that it was sent before
    priority: int
    num_dispatches: int  # of requests before

    def num_new_tokens(self, load: InstanceLoad) -> int:
        """Of the request, that would have to be computed there."""
        return self.num_tokens - self.num_found_tokens.get(load.number, 0)


class Pair(NamedTuple):
    """A request may move from one instance to another one."""

    source: InstanceLoad
    destination: InstanceLoad
    reason: MoveReason


# one of the candidates
Choose = Callable[[Candidates], InstanceLoad]
# pairs of these instances; each is in one pair at most
FindPairs = Callable[[Sequence[InstanceLoad]], list[Pair]]


@dataclass(frozen=True, slots=True)
class ClusterPolicy:
    choose: Choose
    find_pairs: FindPairs | None = None  # None: no request moves
    keeps_headroom: bool = False  # for requests of high priority
    gathers: bool = False  # running requests leave memory to one that waits for memory
    sees_prefixes: bool = False  # it looks at `num_new_tokens`; else no keys of prompts are made
    spares_ending: bool = False  # a request that is predicted to end soon does not move
    # how often moves are considered: loads change within seconds
    balance_every_s: float = 0.5
    max_moves: int = 1  # requests that leave one instance at the same time: what they copy takes step time
