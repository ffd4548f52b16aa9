"""The places of requests in the order of their arrival at one instance."""

from __future__ import annotations

import numpy as np

from python_backends.scheduling.state.roster import Roster
from python_backends.scheduling.state.sequence import Sequence
from tests.support.scheduling import request


def entered(arrivals_s: list[float]) -> list[Sequence]:
    roster, none = Roster(), np.zeros(0, np.int32)
    sequences = [
        Sequence(request(number, [1]), none, 0, 0, arrived_s) for number, arrived_s in enumerate(arrivals_s)
    ]
    for sequence in sequences:
        roster.enter(sequence)
    return sequences


def test_each_has_a_place_of_its_own_however_many_come_from_elsewhere() -> None:
    sequences = entered([1.0, 3.0, *np.linspace(1.5, 2.5, 100).tolist()])
    assert len({sequence.arrival for sequence in sequences}) == len(sequences)
    by_place = sorted(sequences, key=lambda sequence: sequence.arrival)
    assert by_place == sorted(sequences, key=lambda sequence: sequence.arrived_s)


def test_those_that_come_at_the_same_time_are_in_the_order_in_which_they_enter() -> None:
    places = [sequence.arrival for sequence in entered([2.0, 2.0, 2.0, 1.0, 2.0, 3.0])]
    assert places[3] < places[0] < places[1] < places[2] < places[4] < places[5]
