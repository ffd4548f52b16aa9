"""How many instances there are: by the load, with worked values, and by an order."""

from __future__ import annotations

from operator import attrgetter

import numpy as np
import pytest

from python_backends.cluster import autoscaler, scaling
from python_backends.cluster.autoscaler import Autoscaler, average_freeness, fewest_requests
from python_backends.cluster.router import Router
from python_backends.cluster.scaling import Scaling
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load
from python_backends.nouns.order import RefusedOrderError
from python_backends.nouns.request import ModelLimits
from python_backends.settings import ClusterSettings
from python_backends.watching.cluster_state import ClusterState
from python_backends.watching.metrics import Metrics

SIZE, BLOCKS, SLOTS = 16, 1000, 16
LIMITS = ModelLimits(
    max_model_tokens=4096, vocab_size=100, num_slots=SLOTS, num_blocks=BLOCKS, block_tokens=SIZE
)
IDLE = Load()
MIDDLE = Load(num_running=10, num_used_blocks=700)  # 300 blocks left: 480 tokens a request
SHORT = Load(num_running=10, num_used_blocks=910)  # 144 tokens a request
AMPLE = Load(num_running=4, num_used_blocks=100)  # 3,600 tokens a request
FULL = Load(num_running=SLOTS, num_used_blocks=500)  # no free slot
FREENESS = attrgetter("freeness_with_headroom")


def loads_of(*loads: Load) -> list[InstanceLoad]:
    return [InstanceLoad(number, LIMITS, each) for number, each in enumerate(loads)]


class Watched:
    """An autoscaler and a clock that is moved by hand."""

    def __init__(self, **settings: float) -> None:
        self.now_s = 0.0
        chosen = ClusterSettings(**{"max_instances": 4, **settings})  # type: ignore[arg-type]
        self.autoscaler = Autoscaler(chosen, FREENESS, lambda: self.now_s)

    def look(self, *loads: Load, is_changing: bool = False) -> int:
        return self.autoscaler.decide(loads_of(*loads), len(loads), is_changing)

    def watch(self, seconds: float, *loads: Load) -> list[int]:
        """What it says, other than 0, in that time; it looks ten times a second."""
        said = []
        for _ in range(round(10 * seconds)):
            self.now_s += 0.1
            said.append(self.look(*loads))
        return [each for each in said if each]


def test_the_average_is_taken_over_all_and_none_of_them_decides_alone() -> None:
    def average(*loads: Load) -> float:
        return average_freeness(loads_of(*loads), FREENESS, 1920)

    assert average(MIDDLE) == 480
    assert average(MIDDLE, SHORT) == (480 + 144) / 2
    assert average(AMPLE, MIDDLE) == (1920 + 480) / 2, "one that is nearly idle counts as 1,920"
    assert average(IDLE, MIDDLE) == (1920 + 480) / 2, "an idle one too"
    assert average(FULL, MIDDLE) == (-1920 + 480) / 2, "a shortfall counts as −1,920"


def test_an_idle_instance_with_little_memory_counts_as_idle() -> None:
    small = ModelLimits(max_model_tokens=64, vocab_size=100, num_slots=2, num_blocks=4, block_tokens=SIZE)
    assert average_freeness([InstanceLoad(0, small)], FREENESS, 1920) == 1920


def test_the_one_with_the_fewest_requests_ends() -> None:
    assert fewest_requests(loads_of(MIDDLE, AMPLE, MIDDLE)).number == 1
    assert fewest_requests(loads_of(AMPLE, MIDDLE, AMPLE)).number == 2, "the last one of them"


@pytest.mark.parametrize("load", [SHORT, FULL], ids=["memory", "slots"])
def test_there_is_one_more_when_the_average_was_too_low_for_long_enough(load: Load) -> None:
    watched = Watched()
    assert watched.watch(9.9, load) == []
    assert watched.watch(0.3, load) == [1]


def test_there_is_one_less_when_the_average_was_too_high_for_long_enough() -> None:
    watched = Watched()
    assert watched.watch(9.9, AMPLE, AMPLE) == []
    assert watched.watch(0.3, AMPLE, AMPLE) == [-1]


def test_it_does_not_look_at_all_instances_each_turn() -> None:
    asked: list[int] = []
    watched = Watched()
    watched.autoscaler._freeness_of = lambda load: asked.append(load.number) or 480.0  # type: ignore[func-returns-value]
    for _ in range(40):
        watched.now_s += 0.001
        watched.look(MIDDLE)
    assert asked == [0]


def test_between_the_two_bounds_nothing_changes() -> None:
    assert Watched().watch(100, MIDDLE, MIDDLE) == []


def test_an_average_that_comes_back_in_time_changes_nothing() -> None:
    watched = Watched()
    for _ in range(5):
        assert watched.watch(9, SHORT) == []
        assert watched.watch(0.2, MIDDLE) == []
        assert watched.watch(9, IDLE, IDLE) == []
        assert watched.watch(9, SHORT, SHORT) == [], "too high before does not count for too low"
        assert watched.watch(0.2, MIDDLE) == []


def test_the_number_stays_within_its_bounds() -> None:
    assert Watched(max_instances=2).watch(100, FULL, FULL) == []
    assert Watched().watch(100, IDLE) == [], "at least one"
    assert Watched(instances=2).watch(100, IDLE, IDLE) == []
    assert Watched(instances=2).watch(0.1, IDLE) == [1], "an order had left fewer"


def test_nothing_changes_while_an_instance_is_started_or_emptied_and_then_the_time_counts_from_zero() -> None:
    watched = Watched()
    assert watched.watch(9.5, FULL) == []
    watched.now_s += 100
    assert watched.look(FULL, is_changing=True) == 0
    assert watched.watch(9.9, FULL) == []
    assert watched.watch(0.3, FULL) == [1]


def test_no_instance_ends_whose_requests_would_bring_it_back() -> None:
    """Each bound for itself would allow it."""
    for each in (
        Load(num_running=8, num_used_blocks=100),  # 16 requests for 16 slots
        Load(num_running=1, num_used_blocks=495),  # of 1,000 blocks 10 were left: 80 tokens a request
    ):
        assert average_freeness(loads_of(each, each), FREENESS, 1920) > 960
        assert Watched().watch(100, each, each) == []
    assert Watched().watch(11, *[Load(num_running=7, num_used_blocks=100)] * 2) == [-1]


def test_memory_that_is_kept_free_for_requests_of_high_priority_is_not_counted_as_left() -> None:
    high = Load(num_running=1, num_used_blocks=10, num_high_priority=1)
    assert Watched().watch(100, high, high) == []
    assert Watched().watch(11, *[Load(num_running=1, num_used_blocks=10)] * 2) == [-1]


def test_the_number_does_not_flap_whatever_constant_load_there_is() -> None:
    """The same requests, evenly over all instances, for two minutes: the number changes in one direction
    only.
    """
    for num_requests in range(1, 100, 3):
        for blocks_each in (5, 30, 60, 120):
            watched, count, said = Watched(), 2, []
            for _ in range(1200):
                watched.now_s += 0.1
                each = [len(part) for part in np.array_split(np.arange(num_requests), count)]
                loads = [
                    Load(
                        num_running=min(SLOTS, n),
                        num_waiting=max(0, n - SLOTS),
                        num_used_blocks=min(BLOCKS, n * blocks_each),
                    )
                    for n in each
                ]
                change = watched.look(*loads)
                count += change
                said += [change] if change else []
            assert len(set(said)) <= 1, (num_requests, blocks_each, said)
            assert 1 <= count <= 4


# --- which of them


class Instances:
    """A scaling, and instances that get ready and empty when the test says so."""

    def __init__(self, state: ClusterState | None = None, **settings: float) -> None:
        self.now_s = 0.0
        chosen = ClusterSettings(**settings)  # type: ignore[arg-type]
        self.router, self.metrics = Router(chosen), Metrics()
        self.scaling = Scaling(chosen, self.router, self.metrics, state, lambda: self.now_s)
        self.busy: set[int] = set()
        for number in self.scaling.wanted:
            self.get_ready(number)

    def get_ready(self, number: int, load: Load = IDLE) -> None:
        self.scaling.ready(number)
        self.router.ready(number, LIMITS)
        self.router.heard(InstanceLoad(number, LIMITS, load))

    def look(self) -> list[int]:
        self.now_s += 0.1
        ended = self.scaling.decide(lambda number: number not in self.busy)
        for number in ended:
            self.router.lost(number)
        return ended

    def numbers(self) -> set[int]:
        """Of those that should run, after two looks."""
        self.look()
        self.look()
        return set(self.scaling.wanted)

    def count(self, direction: str) -> float:
        return self.metrics.counters.get(("gapless_scalings_total", (("direction", direction),)), 0.0)


def test_without_bounds_and_orders_the_number_is_that_of_the_settings() -> None:
    instances = Instances(instances=3)
    assert instances.numbers() == {0, 1, 2}
    assert (instances.count("up"), instances.count("down")) == (0, 0)


def test_an_order_fixes_the_number_and_its_end_brings_the_usual_one_back() -> None:
    instances = Instances(instances=3)
    instances.scaling.scale(1)
    assert instances.numbers() == {0}
    instances.scaling.scale(99)
    for number in (1, 2):
        instances.scaling.lost(number)
    assert instances.numbers() == {0, 1, 2}, "no more than there can be"
    instances.scaling.scale(2)
    assert len(instances.numbers()) == 2
    instances.scaling.scale(None)
    instances.scaling.lost(2)
    assert instances.numbers() == {0, 1, 2}
    assert (instances.count("up"), instances.count("down")) == (3, 3)


def test_an_instance_runs_until_no_request_needs_it_and_gets_none_meanwhile() -> None:
    instances = Instances(instances=2)
    instances.busy = {0, 1}
    instances.scaling.scale(1)
    assert instances.numbers() == {0, 1}
    assert instances.router.draining == {1}
    instances.busy = {0}
    assert instances.look() == [1]
    assert instances.scaling.wanted == {0}


def test_an_instance_that_is_being_emptied_stays_if_it_is_wanted_again() -> None:
    instances = Instances(instances=3)
    instances.busy = {0, 1, 2}
    instances.scaling.scale(1)
    assert instances.numbers() == {0, 1, 2}
    assert instances.router.draining == {1, 2}
    instances.scaling.scale(3)
    instances.look()
    assert instances.router.draining == frozenset()


def test_instances_that_take_no_requests_are_ended_first() -> None:
    drained = Instances(instances=3)
    drained.scaling.drain(0)
    drained.scaling.scale(2)
    assert drained.numbers() == {1, 2}, "an order had emptied it"
    away = Instances(instances=3)
    away.router.lost(1)
    away.scaling.restore(0)
    away.scaling.scale(2)
    assert away.numbers() == {0, 2}


def test_an_instance_that_is_being_emptied_stays_if_the_last_other_one_dies() -> None:
    instances = Instances(instances=2)
    instances.busy = {0, 1}
    instances.scaling.scale(1)
    instances.look()
    assert instances.router.draining == {1}
    instances.router.lost(0)
    instances.scaling.lost(0)
    instances.look()
    assert instances.router.draining == {0}, "the dead one is the one too many"
    instances.busy = {1}
    assert instances.numbers() == {1}


def test_a_drained_instance_stays_drained_if_the_last_other_one_dies_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    instances = Instances(instances=2)
    instances.scaling.drain(0)
    instances.look()
    assert not caplog.messages
    instances.router.lost(1)
    instances.scaling.lost(1)
    assert instances.numbers() == {0, 1}
    assert instances.scaling.draining == {0}
    [said] = caplog.messages
    assert "drained" in said


def test_a_number_comes_again_only_when_its_last_process_is_known_to_be_gone() -> None:
    instances = Instances(instances=2)
    instances.scaling.scale(1)
    assert instances.numbers() == {0}
    instances.scaling.scale(2)
    assert instances.numbers() == {0}
    instances.scaling.lost(1)
    assert instances.numbers() == {0, 1}


def test_an_order_to_drain_before_an_instance_is_ready_is_refused_with_that_reason() -> None:
    instances = Instances(instances=2)
    for number in (0, 1):
        instances.router.lost(number)
    with pytest.raises(RefusedOrderError, match="no instance is ready"):
        instances.scaling.drain(0)
    instances.get_ready(0)
    with pytest.raises(RefusedOrderError, match="instance 0 is the last one"):
        instances.scaling.drain(0)


def test_an_order_to_drain_ends_with_its_instance() -> None:
    instances = Instances(instances=2)
    instances.scaling.drain(1)
    instances.scaling.scale(1)
    assert instances.numbers() == {0}
    instances.scaling.lost(1)
    instances.scaling.scale(2)
    assert instances.numbers() == {0, 1}
    assert instances.scaling.draining == frozenset()


def test_another_scheduler_model_goes_on_with_the_instances_of_the_last_one() -> None:
    instances = Instances(ClusterState(frozenset({0, 2})), instances=1, max_instances=3)
    assert instances.numbers() == {0, 2}
    instances.scaling.ready(1)  # it was asked to end
    instances.scaling.scale(3)
    assert instances.numbers() == {0, 2}
    instances.scaling.lost(1)
    assert instances.numbers() == {0, 1, 2}


def test_an_instance_that_an_order_has_emptied_ends_though_only_one_other_takes_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autoscaler, "CHANGE_AFTER_S", 1.0)
    instances = Instances(ClusterState(frozenset({0, 1})), max_instances=2)
    instances.scaling.drain(1)
    for _ in range(20):
        instances.look()
    assert instances.scaling.wanted == {0}


def test_an_instance_that_never_gets_ready_keeps_the_number_as_it_is_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autoscaler, "CHANGE_AFTER_S", 1.0)
    monkeypatch.setattr(scaling, "LONGEST_START_S", 5.0)
    instances = Instances(max_instances=3)
    instances.router.heard(InstanceLoad(0, LIMITS, FULL))
    for _ in range(40):
        instances.look()
    assert instances.scaling.wanted == {0, 1}
    for _ in range(60):
        instances.look()
    assert instances.scaling.wanted == {0, 1, 2}, "instance 1 is not waited for any longer"
    instances.get_ready(2, IDLE)
    instances.router.heard(InstanceLoad(0, LIMITS, IDLE))
    for _ in range(15):
        instances.look()
    assert instances.scaling.wanted == {0, 2}, "the one that takes no requests ends first"


def test_the_load_starts_and_ends_instances_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscaler, "CHANGE_AFTER_S", 1.0)
    instances = Instances(max_instances=3)
    instances.router.heard(InstanceLoad(0, LIMITS, FULL))
    for _ in range(40):
        instances.look()
    assert instances.scaling.wanted == {0, 1}, "it is still being started"
    instances.get_ready(1, FULL)
    for _ in range(40):
        instances.look()
    assert instances.scaling.wanted == {0, 1, 2}
    instances.get_ready(2, MIDDLE)
    instances.router.heard(InstanceLoad(1, LIMITS, IDLE))
    instances.router.heard(InstanceLoad(0, LIMITS, Load(num_running=1)))
    instances.busy = {1}
    for _ in range(40):
        instances.look()
    assert instances.scaling.wanted == {0, 1, 2}, "one of them is being emptied"
    assert instances.router.draining == {1}
    instances.busy = set()
    instances.router.heard(InstanceLoad(2, LIMITS, IDLE))
    for _ in range(40):
        instances.look()
    assert instances.scaling.wanted == {0}
    assert (instances.count("up"), instances.count("down")) == (2, 2)
