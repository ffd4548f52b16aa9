"""What requests compete for, and why they wait: one value each, told with the heartbeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backends.nouns.request import WaitReason
from python_backends.scheduling.admission import Contention, contention_of
from python_backends.scheduling.outlook import REFRESHED_S
from tests.support.scheduling import Instance, request, write_vocabulary


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize(
    ("fits_all", "num_free", "expected"),
    [(True, 0, Contention.AMPLE), (False, 2, Contention.SLOTS), (False, 3, Contention.MEMORY)],
)
def test_an_eighth_of_the_slots_is_scarce(fits_all: bool, num_free: int, expected: Contention) -> None:
    assert contention_of(fits_all, num_free, num_slots=16) is expected


@pytest.mark.parametrize("policy", ["fcfs", "ours"])
def test_requests_for_which_there_are_no_slots_wait_for_a_slot(model: Path, policy: str) -> None:
    instance = Instance(model, slots=2, blocks=64, policy=policy)
    for number in range(3):
        instance.submit(request(number, [number + 1] * 5, max_tokens=8))
    assert instance.scheduler.load().wait_reason is WaitReason.STEP
    instance.turn()
    load = instance.scheduler.load()
    assert (load.wait_reason, load.is_contested, load.num_waiting) == (WaitReason.SLOT, True, 1)
    instance.run()
    load = instance.scheduler.load()
    assert (load.wait_reason, load.is_contested) == (None, False)


@pytest.mark.parametrize("policy", ["fcfs", "ours"])
def test_requests_for_which_there_are_no_blocks_wait_for_memory(model: Path, policy: str) -> None:
    """Each may come to hold 48 of 64 tokens."""
    instance = Instance(model, slots=4, blocks=16, policy=policy)
    for number in range(2):
        instance.submit(request(number, [number + 1] * 40, max_tokens=8))
    instance.turn()
    load = instance.scheduler.load()
    assert (load.wait_reason, load.is_contested, load.num_running) == (WaitReason.MEMORY, True, 1)
    instance.run()


def test_to_ask_changes_nothing(model: Path) -> None:
    instance = Instance(model, slots=4, blocks=16, policy="ours")
    for number in range(6):
        instance.submit(request(number, [number + 1] * 40, max_tokens=8))
    instance.turn()
    scheduler, outlook = instance.scheduler, instance.scheduler.outlook
    before = (outlook._refreshed_s, outlook.future.has_curve, scheduler._admission._may_admit)
    loads = [scheduler.load() for _ in range(3)]
    assert len(set(loads)) == 1
    assert (outlook._refreshed_s, outlook.future.has_curve, scheduler._admission._may_admit) == before


def test_when_an_old_curve_goes_those_are_looked_at_that_it_has_refused(model: Path) -> None:
    instance = Instance(model, slots=4, blocks=16, policy="ours")
    outlook = instance.scheduler.outlook
    outlook.refresh(False, lambda _: [], lambda _: True)
    assert outlook.future.has_curve
    assert not outlook.forget_if_old(), "it is new"
    outlook._refreshed_s -= REFRESHED_S
    assert outlook.forget_if_old()
    assert not outlook.future.has_curve
    assert not outlook.forget_if_old(), "nothing has changed since"
