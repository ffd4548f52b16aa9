"""Free memory is gathered where a request waits for it, on values that can be worked out by hand."""

from __future__ import annotations

import numpy as np

from python_backends.cluster.gathering import (
    STEPS_LEFT,
    by_spare,
    destination_for,
    first_waiting,
    lacking,
    missing_tokens,
    spare_tokens,
)
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load
from python_backends.nouns.request import ModelLimits, Request, Sampling
from python_backends.streams.stream import Stream

SIZE = 16
LIMITS = ModelLimits(max_model_tokens=4096, vocab_size=100, num_slots=4, num_blocks=1000, block_tokens=SIZE)


def load(number: int, used: int, head: int = 0, running: int = 1) -> InstanceLoad:
    """With a request that waits for `head` blocks, if any."""
    waiting = int(head > 0)
    said = Load(
        num_running=running,
        num_used_blocks=used,
        num_waiting=waiting,
        waiting_blocks=head,
        head_blocks=head,
    )
    return InstanceLoad(number, LIMITS, said)


def waiting(arrival: int, priority: int = 0) -> Stream:
    request = Request(
        arrival, np.zeros(8, np.int32), Sampling(max_tokens=10), arrival_ns=arrival, priority=priority
    )
    return Stream(request, None, 4, 0)


def test_what_is_missing_and_what_is_to_spare() -> None:
    assert missing_tokens(load(0, used=800, head=300)) == 100 * SIZE + 1
    assert missing_tokens(load(0, used=700, head=300)) == 1, "its next token needs a block too"
    assert missing_tokens(load(0, used=600, head=300)) < 0
    assert spare_tokens(load(0, used=800, running=3)) == 200 * SIZE - 3 * STEPS_LEFT


def test_the_first_that_waits_has_the_highest_priority_and_then_came_first() -> None:
    late, early, high, seated = waiting(3), waiting(2), waiting(4, priority=1), waiting(1)
    seated.seated = True
    assert first_waiting([late, early, seated]) is early
    assert first_waiting([late, early, high]) is high
    assert first_waiting([seated]) is None


def test_instances_that_lack_memory_come_in_the_order_of_their_first_requests() -> None:
    loads = [load(0, 900, head=300), load(1, 900, head=200), load(2, 100, head=200), load(3, 900)]
    firsts = {0: waiting(5), 1: waiting(4), 2: waiting(1), 3: None}
    assert [each.number for each in lacking(loads, firsts)] == [1, 0]
    full = load(0, 900, head=300, running=4)
    assert not lacking([full], firsts), "it waits for a slot"


def test_memory_is_taken_from_those_that_came_later_and_from_no_others() -> None:
    source, younger, older = load(0, 800, head=300), load(1, 700, head=400), load(2, 600, head=500)
    firsts = {0: waiting(5), 1: waiting(7), 2: waiting(3)}
    ordered = by_spare([source, younger, older])
    assert [each.number for each in ordered] == [2, 1, 0]
    assert destination_for(source, ordered, firsts) is younger
    assert destination_for(older, ordered, firsts) is younger
    assert destination_for(younger, ordered, firsts) is None, "the others came before"


def test_where_too_little_memory_is_free_nothing_moves() -> None:
    source, other = load(0, 900, head=300), load(1, 880)
    firsts = {0: waiting(5), 1: None}
    assert missing_tokens(source) > spare_tokens(other)
    assert destination_for(source, by_spare([source, other]), firsts) is None
    freer = load(1, 700)
    assert destination_for(source, by_spare([source, freer]), firsts) is freer
