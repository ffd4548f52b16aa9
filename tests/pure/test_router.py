"""Which instance gets a request: freeness, prefixes, requests that no heartbeat counts, and each policy."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.policies import setting_of
from python_backends.cluster.policies import POLICIES
from python_backends.cluster.prefixes import SentPrefixes
from python_backends.cluster.router import Router
from python_backends.nouns.instance_load import Demand, InstanceLoad, freeness, headroom
from python_backends.nouns.load import Load
from python_backends.nouns.request import BASE, AdapterVersion, ModelLimits, Request, Sampling
from python_backends.settings import ClusterSettings
from python_backends.streams.stream import Stream

SIZE = 16
LIMITS = ModelLimits(max_model_tokens=4096, vocab_size=100, num_slots=4, num_blocks=1000, block_tokens=SIZE)


def load(running: int = 0, used: int = 0, waiting: int = 0, **more: int) -> Load:
    return Load(num_running=running, num_used_blocks=used, num_waiting=waiting, **more)  # type: ignore[arg-type]


def carried(of: Load, unseen: tuple[Demand, ...] = ()) -> InstanceLoad:
    return InstanceLoad(0, LIMITS, of, dict(enumerate(unseen, 1)))


def stream(number: int, prompt: int | list[int] = 8, priority: int = 0) -> Stream:
    ids = np.full(prompt, number % 100) if isinstance(prompt, int) else np.array(prompt)
    request = Request(number, ids.astype(np.int32), Sampling(max_tokens=10), priority=priority)
    return Stream(request, None, 4, 0)


def router(policy: str, *loads: Load) -> Router:
    """With one instance for each of these loads."""
    made = Router(ClusterSettings(instances=len(loads), policy=setting_of(policy)))
    for instance, each in enumerate(loads):
        made.ready(instance, LIMITS)
        made.heard(InstanceLoad(instance, LIMITS, each))
    return made


def test_freeness_is_what_is_left_for_each_request() -> None:
    assert freeness(1000, [100, 200, 300], 3) == 400 / 3
    assert freeness(1000, [100, 200, 300, 500], 3) == -100, "the head of the queue counts with its demand"
    assert freeness(1000, [], 0) == 1000


def test_kept_prefixes_count_as_free_wherever_memory_is_compared() -> None:
    without, with_prefixes = carried(load(2, used=100)), carried(load(2, used=100, num_retained_blocks=900))
    assert without.freeness == with_prefixes.freeness == (1000 - 100) * SIZE / 2
    assert without.freeness_at_peak == with_prefixes.freeness_at_peak
    assert without.free_tokens == with_prefixes.free_tokens
    assert without.unpromised_tokens == with_prefixes.unpromised_tokens


def test_of_two_instances_without_memory_the_smaller_shortfall_is_freer() -> None:
    assert freeness(1000, [1100], 50) > freeness(1000, [1200], 1000)


def test_ordinary_requests_find_little_memory_where_one_of_high_priority_runs() -> None:
    assert headroom(1000, 1600 / SIZE) == 900
    high = carried(load(2, used=50, num_high_priority=1))
    assert high.freeness_with_headroom == (1600 - 50 * SIZE) / 2
    assert high.freeness == (1000 - 50) * SIZE / 2
    assert carried(load(2, used=200, num_high_priority=1)).freeness_with_headroom < 0


def test_without_a_free_slot_the_requests_that_wait_count() -> None:
    full = carried(load(4, used=40))
    longer = carried(load(4, used=40, waiting=3, waiting_blocks=30, head_blocks=10))
    assert carried(load(3, used=40)).freeness > 0 > full.freeness > longer.freeness


def test_requests_count_from_the_moment_they_are_sent() -> None:
    demand = Demand(num_tokens=320, num_new_tokens=320, priority=1)
    before, after = carried(load(1, used=10)), carried(load(1, used=10), (demand, demand))
    assert before.freeness == (1000 - 10) * SIZE
    assert after.freeness == ((1000 - 10) * SIZE - 640) / 3
    assert after.num_free_slots == 1
    assert after.num_high_priority == 2
    next_one = InstanceLoad(0, LIMITS, load(2, used=30, last_submit=1)).following(after)
    assert list(next_one.unseen) == [2], "the heartbeat counts the first of them"


def test_new_requests_do_not_all_go_to_the_instance_that_was_free_at_its_last_heartbeat() -> None:
    asked = router("llumnix", load(), load())
    for number in range(8):
        each = stream(number)
        instance = asked.choose(each, [0, 1])
        assert instance is not None
        asked.submitted(each, instance, number)
    assert asked.num_dispatches == {0: 4, 1: 4}


@pytest.mark.parametrize(
    ("policy", "loads", "expected"),
    [
        ("least_requests", (load(3, used=1), load(2, used=500)), 1),
        ("infaas", (load(3, used=1), load(2, used=500)), 0),
        ("infaas", (load(4, used=1), load(2, used=500)), 1),  # no slot is free in the first
        ("infaas", (load(1, used=1, waiting=1, waiting_blocks=900), load(2, used=500)), 1),
        ("llumnix_base", (load(1, used=400), load(2, used=300)), 0),  # 9,600 and 5,600 tokens per request
        ("llumnix", (load(1, used=90, num_high_priority=1), load(3, used=300)), 1),
        ("llumnix_base", (load(1, used=90, num_high_priority=1), load(3, used=300)), 0),
        ("ours", (load(4, used=10), load(3, used=500)), 1),  # a free slot is worth more than memory
        ("ours", (load(1, used=1000), load(3, used=500)), 1),  # no memory in the first
        (
            "ours",
            (load(1, used=10, waiting=1, waiting_blocks=40), load(3, used=500)),
            1,
        ),  # a prompt before it
        ("ours", (load(3, used=90), load(2, used=80)), 1),  # the same wait: the freer one
    ],
)
def test_each_policy_has_its_choice(policy: str, loads: tuple[Load, ...], expected: int) -> None:
    asked = router(policy, *loads)
    assert asked.choose(stream(1), range(len(loads))) == expected


def test_a_request_of_high_priority_goes_where_memory_is_unused_whatever_waits_there() -> None:
    """96 blocks are for requests that wait in the first; the second has less unused memory."""
    asked = router("ours", load(1, used=100, waiting=1, waiting_blocks=900), load(3, used=800))
    assert asked.choose(stream(1, 2048, priority=1), [0, 1]) == 0
    assert asked.choose(stream(2, 2048), [0, 1]) == 1
    assert asked.choose(stream(3, 4000, priority=1), [0, 1]) == 0, "3,200 unused tokens are too few"


def test_a_prompt_that_is_computed_already_counts_as_long_as_it_is_not_complete() -> None:
    asked = router("ours", load(1, used=100, num_prefill_tokens=1000), load(3, used=500))
    assert asked.choose(stream(1), [0, 1]) == 1
    asked.heard(InstanceLoad(0, LIMITS, load(1, used=100)))
    assert asked.choose(stream(1), [0, 1]) == 0


def test_freeness_at_the_peak_is_that_of_the_fullest_time() -> None:
    growing = carried(load(2, used=100, future_blocks=600))
    assert growing.freeness_at_peak == (1000 - 600) * SIZE / 2
    assert carried(load(2, used=100, future_blocks=50)).freeness_at_peak == (1000 - 100) * SIZE / 2
    assert carried(load(2, used=100, future_blocks=1100)).freeness_at_peak == -100 * SIZE


def test_ours_moves_requests_before_evictions_to_the_least_memory_that_suffices() -> None:
    short, free, idle = load(2, used=900, future_blocks=1100), load(2, used=600, future_blocks=700), load()
    full = load(2, used=900, future_blocks=960)  # has 40 blocks at its peak: less than a sixteenth
    asked = router("ours", idle, full, short, free)
    assert [(pair.source.number, pair.destination.number) for pair in asked.find_pairs()] == [(2, 3)]
    asked.heard(
        InstanceLoad(
            1, LIMITS, load(2, used=900, future_blocks=960, waiting=1, waiting_blocks=200, head_blocks=200)
        )
    )
    assert asked.find_pairs() == [], "free memory is for the request that waits"


def test_a_choice_among_many_instances_is_the_one_among_each_of_them() -> None:
    """Figures of instances that came, went and told other loads are those of the present."""
    asked = router("llumnix", *[load(2, used=used) for used in (500, 400, 300, 200)])
    assert asked.choose(stream(1), [0, 1, 2, 3]) == 3
    asked.lost(3)
    assert asked.choose(stream(1), [0, 1, 2, 3]) == 2
    asked.heard(InstanceLoad(0, LIMITS, load(2, used=10)))
    assert asked.choose(stream(1), [0, 1, 2, 3]) == 0
    asked.draining = frozenset({0, 2})
    assert asked.choose(stream(1), [0, 1, 2, 3]) == 1


def test_round_robin_takes_one_after_the_other() -> None:
    asked = router("round_robin", load(4), load(), load())
    chosen = []
    for number in range(6):
        instance = asked.choose(stream(number), [0, 1, 2])
        assert instance is not None
        asked.submitted(stream(number), instance, number)
        chosen.append(instance)
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_ours_goes_where_the_beginning_of_the_prompt_was_sent() -> None:
    asked = router("ours", load(3, used=60), load(1, used=10))
    first, again = stream(1, [*range(64), 1]), stream(2, [*range(64), 2])
    asked.submitted(first, 0, 1)
    asked.heard(InstanceLoad(0, LIMITS, load(3, used=60, last_submit=1)))
    assert asked.choose(again, [0, 1]) == 0
    assert asked.choose(stream(3, 65), [0, 1]) == 1
    asked.lost(0)
    asked.ready(0, LIMITS)
    assert asked.choose(again, [0, 1]) == 0, "both are free"
    asked.heard(InstanceLoad(0, LIMITS, load(1, used=11)))
    assert asked.choose(again, [0, 1]) == 1, "a restarted instance has no blocks of it"


def test_the_keys_of_a_prompt_are_made_once_and_only_for_a_policy_that_looks_at_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    keys_of = SentPrefixes.keys
    monkeypatch.setattr(
        SentPrefixes, "keys", lambda self, request: made.append(request.request_id) or keys_of(self, request)
    )
    for number, policy in enumerate(POLICIES):
        asked, sent = router(policy, load(), load()), stream(number, 65)
        for _ in range(2):  # the second time after a death
            instance = asked.choose(sent, [0, 1])
            assert instance is not None
            asked.submitted(sent, instance, 1)
            asked.moved(sent, 1 - instance)
    assert made == [list(POLICIES).index("ours")]
    keys = router("ours", load()).prefix_keys(sent.request)
    assert keys is not None
    assert len(keys) == 64 // SIZE


def test_only_allowed_and_ready_instances_are_chosen() -> None:
    asked = router("least_requests", load(), load(3), load(4))
    assert asked.choose(stream(1), [1, 2]) == 1
    asked.lost(1)
    assert asked.choose(stream(1), [1, 2]) == 2
    assert asked.choose(stream(1), [1]) is None


def test_as_many_prefix_blocks_are_remembered_as_an_instance_has() -> None:
    sent = SentPrefixes(SIZE, num_blocks=4)
    prompt, law = np.zeros(3 * SIZE + 1, np.int32), AdapterVersion("law", "1", "01")
    keys = [sent.keys(Request(1, prompt, Sampling(1), adapter=adapter)) for adapter in (BASE, law)]
    sent.sent(0, keys[0])
    assert sent.num_found_tokens(keys[0]) == {0: 3 * SIZE}
    sent.sent(0, keys[1])
    assert sent.num_found_tokens(keys[1]) == {0: 3 * SIZE}
    assert sent.num_found_tokens(keys[0]) == {}, "its first blocks were the oldest"


def test_the_prefixes_of_an_instance_that_has_ended_cost_no_memory() -> None:
    sent = SentPrefixes(SIZE, num_blocks=100)
    short, long = [sent.keys(Request(1, np.zeros(count, np.int32), Sampling(1))) for count in (33, 65)]
    for instance, keys in ((0, short), (2, long), (5, long)):
        sent.sent(instance, keys)
    assert sent.num_found_tokens(long) == {0: 32, 2: 64, 5: 64}
    for instance in (2, 0, 5, 5):
        sent.lost(instance)
    assert not sent._keys
    assert not sent._holders
    asked = router("ours", load(), load())
    asked.submitted(stream(1, 65), 0, 1)
    asked.lost(0)
    assert asked._prefixes is not None
    assert not asked._prefixes._holders
