"""Which signals end an instance, and when."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator

import pytest

from python_backends.instance.ending import WAIT_S, Ending
from python_backends.linux.process_group import ASK
from tests.support.clock import Clock

OTHERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def draining() -> list[bool]:
    """Not empty once the launcher drains."""
    return []


@pytest.fixture
def ending(draining: list[bool], clock: Clock) -> Iterator[Ending]:
    """It gets the signals of this process."""
    before = {name: signal.getsignal(name) for name in (ASK, *OTHERS)}
    made = Ending(lambda: bool(draining), clock)
    made.obey_signals()
    yield made
    for name, handler in before.items():
        signal.signal(name, handler)


def test_without_a_signal_it_goes_on(ending: Ending, clock: Clock) -> None:
    clock.now_s = math.inf
    assert not ending.is_due()


def test_the_launchers_signal_ends_it_at_once(ending: Ending, draining: list[bool]) -> None:
    draining.append(True)
    os.kill(os.getpid(), ASK)
    assert ending.is_due()
    assert ending.is_due(), "also when it is asked again"


@pytest.mark.parametrize("number", OTHERS)
def test_it_ends_after_a_moment_if_it_is_meant_alone(ending: Ending, clock: Clock, number: int) -> None:
    os.kill(os.getpid(), number)
    assert not ending.is_due()
    clock.now_s += WAIT_S / 2
    os.kill(os.getpid(), number)
    assert not ending.is_due()
    clock.now_s += WAIT_S / 2
    assert ending.is_due(), "a second signal puts nothing off"


@pytest.mark.parametrize("number", OTHERS)
def test_a_signal_to_all_processes_leaves_it_to_the_launcher_that_drains(
    ending: Ending, clock: Clock, draining: list[bool], number: int
) -> None:
    os.kill(os.getpid(), number)
    draining.append(True)
    for _ in range(3):
        clock.now_s += WAIT_S
        assert not ending.is_due()
    os.kill(os.getpid(), ASK)
    assert ending.is_due()
