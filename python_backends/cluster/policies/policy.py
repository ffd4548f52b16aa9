"""What a policy of the cluster decides on, and what it is: one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


# one of the candidates [at least one], which are in the order of their numbers
ClusterPolicy = Callable[[Sequence[Candidate], Dispatch], Candidate]
