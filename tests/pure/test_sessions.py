"""The wires between scheduler model, instance and detokenizer: who
may start, die and come back in which order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.linux import pauses
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load
from python_backends.nouns.messages import Cancel, Submit
from python_backends.nouns.request import Feedback, ModelLimits, Request, Sampling
from python_backends.nouns.step import Tokens
from python_backends.wires import sessions, sockets
from python_backends.wires.feedback import MOST_HELD, FeedbackEnd
from python_backends.wires.sessions import (
    InstanceEnd,
    InstanceLost,
    InstanceReady,
    NewSession,
    SchedulerEnd,
)
from python_backends.wires.sparse_log import SparseLog

LIMITS = ModelLimits(100, 50, 4, 20, 16, "x")
WAKES_ONLY_S = 3600.0  # longer than a test may take


class Wires:
    """Both ends in one process, opened and closed as a test likes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: list[Any] = []
        self.heard: dict[Any, list[Any]] = {}

    def hear(self, end: Any, kind: type) -> list[Any]:
        """All ends listen until `end` has heard a message of `kind`.
        What it heard since it was last asked.
        """
        until_s = time.monotonic() + 60
        while not any(isinstance(message, kind) for message in self.heard[end]):
            assert time.monotonic() < until_s, f"no {kind.__name__} in {self.heard[end]}"
            for each in self._open:
                self.heard[each] += each.receive(0.01)
        heard, self.heard[end] = self.heard[end], []
        return heard

    def scheduler(self, dead_after_s: float = 60.0) -> SchedulerEnd:
        return self._kept(SchedulerEnd(self.directory, dead_after_s))

    def instance(self) -> InstanceEnd:
        return self._kept(InstanceEnd(self.directory, "instance-0", LIMITS))

    def kill(self, end: Any) -> None:
        self._open.remove(end)
        end.close()

    def close(self) -> None:
        for end in self._open:
            end.close()

    def _kept(self, end: Any) -> Any:
        self._open.append(end)
        self.heard[end] = []
        return end


@pytest.fixture
def wires(tmp_path: Path) -> Iterator[Wires]:
    made = Wires(tmp_path)
    yield made
    made.close()


def a_submit() -> Submit:
    return Submit(Request(7, np.array([1, 2], np.int32), Sampling(max_tokens=3)), np.zeros(0, np.int32), 0)


@pytest.mark.parametrize("instance_first", [True, False])
def test_both_ends_may_start_first(wires: Wires, instance_first: bool) -> None:
    if instance_first:
        instance, scheduler = wires.instance(), wires.scheduler()
    else:
        scheduler, instance = wires.scheduler(), wires.instance()
    ready = wires.hear(scheduler, InstanceReady)
    assert ready[-1].limits == LIMITS
    scheduler.send(0, [a_submit(), Cancel(7)])
    heard = wires.hear(instance, Cancel)
    assert [type(message) for message in heard if not isinstance(message, NewSession)] == [Submit, Cancel]


def test_an_instance_that_is_silent_is_lost_and_forgets_everything_when_it_wakes(wires: Wires) -> None:
    scheduler, instance = wires.scheduler(dead_after_s=0.5), wires.instance()
    wires.hear(scheduler, InstanceReady)
    scheduler.send(0, [a_submit()])
    wires.hear(scheduler, InstanceLost)
    instance.publish([Load(num_running=1)])  # it wakes up, and doesn't know yet
    wires.heard[instance].clear()
    wires.hear(instance, NewSession)
    heard = wires.hear(scheduler, InstanceReady)
    assert not any(isinstance(message, InstanceLoad) for message in heard), (
        "what it did for the old session counts no more"
    )


def test_an_instance_whose_process_has_ended_is_given_up_at_once(wires: Wires) -> None:
    scheduler, instance = wires.scheduler(), wires.instance()
    wires.hear(scheduler, InstanceReady)
    assert scheduler.give_up(0) == [InstanceLost(0)]
    assert scheduler.give_up(0) == scheduler.give_up(7) == []
    instance.publish([Load(num_running=1)])  # as if it had been sent before
    wires.heard[instance].clear()
    wires.hear(instance, NewSession)
    assert not [each for each in wires.hear(scheduler, InstanceReady) if isinstance(each, InstanceLoad)]


@pytest.fixture
def passed_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """[seconds] by which the clock of those who watch is ahead; a test adds to them."""
    ahead_s, clock, silence = [0.0], time.monotonic, sessions.Silence
    monkeypatch.setattr(pauses.time, "monotonic", lambda: clock() + ahead_s[0])
    monkeypatch.setattr(sessions, "Silence", lambda longest_s: silence(longest_s, pauses.time.monotonic))
    return ahead_s


def test_an_instance_is_not_lost_when_the_machine_stood_still(wires: Wires, passed_s: list[float]) -> None:
    """Nothing of it lies in the socket yet when the scheduler model looks."""
    scheduler, instance = wires.scheduler(dead_after_s=10.0), wires.instance()
    wires.hear(scheduler, InstanceReady)
    for _ in range(3):
        passed_s[0] += 15
        assert scheduler.receive(0.0) == []
        instance.publish([Load(num_running=1)])
        assert wires.hear(scheduler, InstanceLoad) == [InstanceLoad(0, LIMITS, Load(num_running=1))]
    news = []
    for _ in range(12):  # the scheduler model is awake, and the instance is silent
        passed_s[0] += 1
        news += scheduler.receive(0.0)
    assert [type(each) for each in news] == [InstanceLost]


def test_an_instance_with_long_steps_may_be_silent_for_longer(wires: Wires, passed_s: list[float]) -> None:
    """A large model on a slow machine: between two beats is a step."""
    scheduler, instance = wires.scheduler(dead_after_s=10.0), wires.instance()
    wires.hear(scheduler, InstanceReady)
    instance.publish([Load(longest_step_s=8.0)])
    wires.hear(scheduler, InstanceLoad)
    news = []
    for _ in range(31):
        passed_s[0] += 1
        news += scheduler.receive(0.0)
    assert news == []
    for _ in range(3):
        passed_s[0] += 1
        news += scheduler.receive(0.0)
    assert [type(each) for each in news] == [InstanceLost]
    assert 32 < news[0].silent_s < 36


def test_a_restarted_instance_takes_the_place_of_the_dead_one(wires: Wires) -> None:
    scheduler, first = wires.scheduler(), wires.instance()
    wires.hear(scheduler, InstanceReady)
    wires.kill(first)
    second = wires.instance()
    heard = wires.hear(scheduler, InstanceReady)
    assert [type(message) for message in heard] == [InstanceLost, InstanceReady]
    scheduler.send(0, [a_submit()])
    wires.hear(second, Submit)


def test_of_two_lives_of_an_instance_the_later_one_counts_until_it_is_silent(wires: Wires) -> None:
    """As where a host was cut off, its instance was started on another one, and the host is back."""
    scheduler, first = wires.scheduler(), wires.instance()
    wires.hear(scheduler, InstanceReady)
    second = wires.instance()
    news = wires.hear(scheduler, InstanceReady)
    for count in range(1, 6):
        first.publish([Load(num_running=7)])
        second.publish([Load(num_running=count)])
        news += wires.hear(scheduler, InstanceLoad)
    lost, ready, *loads = news
    assert (lost, type(ready)) == (InstanceLost(0), InstanceReady)
    assert loads == [InstanceLoad(0, LIMITS, Load(num_running=count)) for count in range(1, 6)]
    scheduler.send(0, [a_submit()])
    wires.hear(second, Submit)
    assert not any(isinstance(message, Submit) for message in wires.heard[first])
    wires.kill(second)
    scheduler._dead_after_s = 0.2
    assert [type(each) for each in wires.hear(scheduler, InstanceLost)] == [InstanceLost]
    first.publish([Load()])
    wires.hear(scheduler, InstanceReady)


def test_of_two_lives_the_earlier_one_does_not_come_between_the_other_and_its_session(wires: Wires) -> None:
    scheduler, first = wires.scheduler(), wires.instance()
    wires.hear(scheduler, InstanceReady)
    second = wires.instance()  # its first hello has a session of nobody
    while not (news := scheduler.receive(0.01)):
        pass
    first.publish([Load()])
    time.sleep(0.05)
    news += scheduler.receive(0.01)
    assert news == [InstanceLost(0)]
    wires.hear(scheduler, InstanceReady)
    scheduler.send(0, [a_submit()])
    wires.hear(second, Submit)


def test_a_restarted_scheduler_finds_the_instance_and_the_instance_drops_what_it_had(wires: Wires) -> None:
    first, instance = wires.scheduler(), wires.instance()
    wires.hear(first, InstanceReady)
    wires.kill(first)
    second = wires.scheduler()
    instance.publish([Load(num_running=1)])
    wires.hear(instance, NewSession)
    heard = wires.hear(second, InstanceReady)
    assert not any(isinstance(message, InstanceLoad) for message in heard)


def tokens(index: int) -> Tokens:
    one = np.zeros(1, np.int32)
    return Tokens(one.astype(np.int64) + 7, one, one + index, one + 40, one.astype(np.uint8))


def test_a_frame_of_an_instance_that_is_lost_ends_the_session(wires: Wires) -> None:
    scheduler, instance = wires.scheduler(), wires.instance()
    wires.hear(scheduler, InstanceReady)
    wires.hear(instance, NewSession)
    instance.publish([tokens(0)])
    wires.hear(scheduler, Tokens)
    instance.publish([tokens(1)])
    scheduler._instances.recv_multipart()
    instance.publish([tokens(2)])
    wires.heard[scheduler].clear()
    heard = wires.hear(scheduler, InstanceReady)
    assert [type(each) for each in heard] == [InstanceLost, InstanceReady]
    assert any(isinstance(each, NewSession) for each in wires.hear(instance, NewSession))
    scheduler.send(0, [a_submit()])
    wires.hear(instance, Submit)
    instance.publish([tokens(0)])
    wires.hear(scheduler, Tokens)


def test_a_frame_to_an_instance_that_is_lost_ends_the_session_though_no_other_follows(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "BEAT_S", 0.05)
    scheduler, instance = wires.scheduler(), wires.instance()
    wires.hear(scheduler, InstanceReady)
    wires.hear(instance, NewSession)
    scheduler.send(0, [a_submit()])
    instance._socket.recv_multipart()
    heard = wires.hear(scheduler, InstanceReady)
    assert [type(each) for each in heard] == [InstanceLost, InstanceReady]
    heard = wires.hear(instance, NewSession)
    scheduler.send(0, [a_submit()])
    heard += wires.hear(instance, Submit)
    assert [type(each) for each in heard] == [NewSession, Submit]


def test_tokens_of_a_run_arrive_whole_and_a_new_session_hears_again_whose_they_are(wires: Wires) -> None:
    ids, zeros = np.array([7, 8], np.int64), np.zeros(2, np.int32)
    run = [Tokens(ids, zeros, zeros + step, zeros + 40 + step, zeros.astype(np.uint8)) for step in range(4)]
    first, instance = wires.scheduler(), wires.instance()
    wires.hear(first, InstanceReady)
    wires.hear(instance, NewSession)
    for tokens in run[:2]:
        instance.publish([tokens])
    heard = wires.hear(first, Tokens)
    while len(heard) < 2:
        heard += wires.hear(first, Tokens)
    wires.kill(first)
    second = wires.scheduler()
    instance.publish([run[2]])  # it doesn't know yet, and what it says counts no more
    wires.hear(instance, NewSession)
    wires.hear(second, InstanceReady)
    instance.publish([run[3]])
    heard += wires.hear(second, Tokens)
    assert [
        (tokens.request_ids.tolist(), tokens.indices.tolist(), tokens.tokens.tolist()) for tokens in heard
    ] == [([7, 8], [step, step], [40 + step, 40 + step]) for step in (0, 1, 3)]


def test_feedback_and_wakes_arrive(wires: Wires) -> None:
    scheduler, detokenizer = wires.scheduler(), FeedbackEnd(wires.directory)
    detokenizer.send(Feedback(1, 2), Feedback(3, 4, gone=True))
    assert wires.hear(scheduler, Feedback) == [Feedback(1, 2), Feedback(3, 4, gone=True)]
    detokenizer.close()
    scheduler.wake()
    assert scheduler.receive(WAKES_ONLY_S) == []


def test_an_instance_that_waits_for_news_can_be_woken(wires: Wires) -> None:
    instance = wires.instance()
    instance.receive(0.5)
    threading.Timer(0.05, instance.wake).start()
    assert instance.receive(WAKES_ONLY_S) == []


def test_feedback_that_can_wait_goes_along_with_the_next_in_order(wires: Wires) -> None:
    scheduler, detokenizer = wires.scheduler(), FeedbackEnd(wires.directory)
    detokenizer.send(Feedback(1, 1))
    assert wires.hear(scheduler, Feedback) == [Feedback(1, 1)]
    detokenizer.send(Feedback(1, 2), can_wait=True)  # goes at once if 20 ms have passed meanwhile
    detokenizer.send(Feedback(1, 3), can_wait=True)
    detokenizer.send()
    heard: list[Feedback] = []
    while len(heard) < 2:
        heard += wires.hear(scheduler, Feedback)
    assert heard == [Feedback(1, 2), Feedback(1, 3)]
    detokenizer.close()


def test_much_feedback_that_can_wait_does_not(wires: Wires) -> None:
    scheduler, detokenizer = wires.scheduler(), FeedbackEnd(wires.directory)
    detokenizer.send(Feedback(1, 1))
    wires.hear(scheduler, Feedback)
    words = [Feedback(1, 2 + number) for number in range(MOST_HELD)]
    for word in words:
        detokenizer.send(word, can_wait=True)
    heard: list[Feedback] = []
    while len(heard) < len(words):
        heard += wires.hear(scheduler, Feedback)
    assert heard == words
    detokenizer.close()


def test_a_frame_from_a_stranger_is_passed_over_and_a_flood_of_them_logged_once(
    wires: Wires, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zmq

    monkeypatch.setattr(sockets, "_sparse_log", SparseLog(logging.getLogger("gapless")))  # no other's lines
    scheduler, instance = wires.scheduler(), wires.instance()
    wires.hear(scheduler, InstanceReady)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.connect(f"ipc://{wires.directory}/scheduler.sock")
        for frame in (b"", b"\xc1", b"hello"):
            stranger.send(frame)
        time.sleep(0.05)
        instance.publish([Load(num_running=2)])
        assert wires.hear(scheduler, InstanceLoad) == [InstanceLoad(0, LIMITS, Load(num_running=2))]
    assert len([record for record in caplog.records if "dropped a frame" in record.message]) == 1
