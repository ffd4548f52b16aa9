"""When a window is sent, by the stream table with a fake clock: what goes at once, what waits for company or
for free places, and what is probed.
"""

from __future__ import annotations

from collections import deque

import pytest

from python_backends.nouns.request import Feedback, Finish, Idle
from python_backends.streams import delivery
from python_backends.streams.delivery import Delivery
from python_backends.streams.unconfirmed import Unconfirmed
from tests.support.stream_table import MS, House, crowd, running, waiting_for_company


def test_a_stream_that_waits_is_probed_and_gets_one_empty_chunk() -> None:
    house = running()
    for _ in range(8):
        house.turn(ms=125)
        house.table.feedback(Feedback(1, 0))
    windows = house.windows(1)
    assert len(windows) == 4
    assert [window.emit for window in windows].count(True) == 1
    assert all(len(window.tokens) == 0 for window in windows)


def test_many_waiting_streams_are_probed_less_often() -> None:
    house = House({"max_open": 2000})
    for number in range(1000):
        house.accept(number)
    for _ in range(10):
        house.turn(ms=100)
    assert sum(map(len, house.sent.values())) <= 1000


def test_tokens_are_put_together_only_while_the_sender_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SENDER_LOAD", 0.1)
    monkeypatch.setattr(delivery, "MOST_HELD_S", 0.040)
    busy = Delivery(Unconfirmed(), {}, now_ns=0)
    intervals_s = []
    for busy_s, now_s in (
        *((0.001, 0.125), (0.020, 0.1875), (0.005, 0.25), (0.06, 0.375), (0.06, 0.5)),
        *((0.001, 1.0), (0.001, 2.0), (0.001, 3.0), (0.001, 4.0)),
    ):
        busy.spent(busy_s, now_s)
        intervals_s.append(busy.interval_s)
    assert intervals_s[:2] == [0, 0], "the second is too early to know"
    assert intervals_s[2:] == pytest.approx([0.020, 0.040, 0.040, 0.020, 0.010, 0, 0]), "twice as busy first"


def test_tokens_wait_for_company_until_the_interval_is_over() -> None:
    house = waiting_for_company()
    house.turn(ms=39)
    assert house.received(1) == [50]
    assert house.table.wait_s() == pytest.approx(0.001)
    house.turn(ms=2)
    assert house.received(1) == [50, 51]


def test_a_slow_reader_gets_its_tokens_in_fewer_and_larger_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_UNACKNOWLEDGED", 2)
    house = running()
    for index in range(10):
        house.tokens((1, 0, index, 50 + index, Finish.RUNNING))
        house.turn(ms=1)
    assert len(house.windows(1)) == 2
    house.table.feedback(Feedback(1, 1))
    house.turn()
    assert house.received(1) == list(range(50, 60))


def test_a_crowd_sends_no_more_windows_than_keep_the_detokenizer_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "MAX_IN_FLIGHT", 2)
    house = crowd(1, 2, 3)
    for index in range(1, 4):
        house.tokens(*((number, 0, index, 50 + index, Finish.RUNNING) for number in (1, 2, 3)))
        house.turn(ms=1)
    assert [house.received(number) for number in (1, 2, 3)] == [[50, 51], [50, 51], [50]]
    assert house.table.wait_s() > 0, "until a window is confirmed nothing is to be done"


def test_who_has_waited_longest_is_the_first_for_whom_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_IN_FLIGHT", 1)
    house = crowd(1, 2, 3)
    for index in range(1, 4):
        house.tokens(*((number, 0, index, 50 + index, Finish.RUNNING) for number in (1, 2, 3)))
        house.turn(ms=1)
        house.table.feedback(Feedback(index, 1 + index))
        house.turn(ms=1)
    assert [len(house.received(number)) for number in (1, 2, 3)] == [4, 2, 3]


def test_first_and_last_tokens_need_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_IN_FLIGHT", 1)
    house = crowd(1, 2)
    house.tokens((1, 0, 1, 51, Finish.RUNNING))
    house.turn(ms=1)
    house.accept(3)
    house.tokens((2, 0, 1, 51, Finish.STOP), (3, 0, 0, 50, Finish.RUNNING))
    house.turn(ms=1)
    assert [house.received(number) for number in (1, 2, 3)] == [[50, 51], [50, 51], [50]]


def test_a_window_that_is_lost_takes_no_room_once_the_detokenizer_has_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "MAX_IN_FLIGHT", 1)
    house = crowd(1, 2)
    house.tokens((1, 0, 1, 51, Finish.RUNNING))
    house.turn(ms=1)
    house.tokens((2, 0, 1, 51, Finish.RUNNING))
    house.turn(ms=1)
    assert house.received(2) == [50]
    house.table.idle(Idle(house.now_ns))
    house.turn()
    assert house.received(2) == [50], "the server may stand still with the window inside"
    house.turn(ms=100)
    house.table.server_answered(house.now_ns)
    house.turn(ms=200)
    house.table.idle(Idle(house.now_ns))
    house.turn()
    assert house.received(2) == [50, 51]


def test_a_stream_that_fails_gets_its_text_so_far_and_its_error_once_that_is_confirmed() -> None:
    house = waiting_for_company()
    house.table.fail_all("the server is shutting down")
    house.turn()
    assert house.received(1) == [50, 51]
    assert house.windows(1)[-1].finish is Finish.RUNNING
    assert house.finals(1) == 0, "a request must not fail while its window is inside the detokenizer"
    for window in house.windows(1):
        house.table.feedback(Feedback(1, window.start + len(window.tokens)))
    house.turn()
    assert house.sent[1][-1].error == "the server is shutting down"
    assert house.finals(1) == 1


def test_the_error_of_a_stream_does_not_wait_for_a_confirmation_that_never_comes() -> None:
    house = waiting_for_company()
    house.table.fail(1, "an error")
    for _ in range(6):
        house.turn(ms=250)
    assert house.received(1) == [50, 51]
    assert house.finals(1) == 1
    assert house.sent[1][-1].error == "an error"


def test_an_answer_in_one_piece_that_fails_while_its_tokens_are_held_gets_its_error_alone() -> None:
    house = House()
    house.table.instance_ready(0)
    house.table.delivery.interval_s = 0.040
    house.accept(1, stream=False, stop_words=("x",))
    for index in range(2):
        house.tokens((1, 0, index, 50 + index, Finish.RUNNING))
        house.turn()
    house.table.fail(1, "an error")
    house.turn(ms=50)
    assert [(window.tokens.tolist(), window.silent) for window in house.windows(1)] == [([50], True)]
    house.table.feedback(Feedback(1, 1))
    house.turn()
    assert [out.error for out in house.sent[1]] == ["", "an error"]
    assert house.finals(1) == 1


@pytest.mark.parametrize(("fails", "num_probes"), [(False, 1), (True, 0)])
def test_a_stream_that_waits_to_be_probed_is_not_probed_once_it_fails(
    monkeypatch: pytest.MonkeyPatch, fails: bool, num_probes: int
) -> None:
    monkeypatch.setattr(delivery, "MAX_IN_FLIGHT", 4)  # one probe at a time
    house = running(2)
    house.turn(ms=200)
    house.accept(1)
    house.turn(ms=60)
    assert [out.is_probe for out in house.sent[2]] == [True]
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn(ms=1)
    house.turn(ms=260)
    if fails:
        house.table.fail(1, "an error")
    house.table.feedback(Feedback(2, 0))
    house.turn()
    assert house.received(1) == [50]
    assert [out.is_probe for out in house.sent[1]] == [False] + [True] * num_probes
    house.table.feedback(Feedback(1, 1))
    house.turn()
    assert [out.error for out in house.sent[1] if out.final] == ["an error"] * fails


@pytest.mark.parametrize("per_second", [300, 1100])
def test_with_1024_waiting_requests_and_a_slow_detokenizer_nobody_is_cancelled_and_tokens_pass(
    per_second: int,
) -> None:
    """Two streams compute, the others wait; the detokenizer deals with `per_second` windows."""
    house = House({"max_open": 1024})
    house.table.instance_ready(0)
    house.table.delivery.interval_s = 0.05
    for number in range(1024):
        house.accept(number)
    inside: deque[tuple[int, int, int]] = deque()
    num_seen, oldest_ns, last_probe = (
        dict.fromkeys(range(1024), 0),
        0,
        dict.fromkeys(range(1024), house.now_ns),
    )
    slowest_probe_ns, budget = 0, 0.0
    for index in range(20 * 120):  # two minutes in steps of 50 ms
        house.now_ns += 50 * MS
        if index < 90:
            house.tokens(*[(number, 0, index, 50, Finish.RUNNING) for number in (0, 1)])
        for out in house.table.due():
            assert not out.final
            house.table.handed_over(out, house.now_ns)
            assert out.window is not None
            inside.append((out.request_id, out.window.start + len(out.window.tokens), house.now_ns))
            slowest_probe_ns = max(slowest_probe_ns, house.now_ns - last_probe[out.request_id])
            last_probe[out.request_id] = house.now_ns
        budget = min(budget + per_second / 20, 60)
        while inside and budget >= 1:
            number, reached, sent_ns = inside.popleft()
            oldest_ns, budget = max(oldest_ns, house.now_ns - sent_ns), budget - 1
            num_seen[number] += 1
            house.table.feedback(Feedback(number, reached))
        if not inside:
            house.table.idle(Idle(house.now_ns))
    assert len(house.table) == 1024
    assert oldest_ns < 1000 * MS, "tokens would wait until the probes are confirmed"
    assert min(num_seen.values()) > 3
    assert slowest_probe_ns < 30_000 * MS, "a client that leaves is noticed by then"
