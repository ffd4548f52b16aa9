"""The stream table with a fake clock: every stream gets each token
once, in order, and exactly one last answer.
"""

from __future__ import annotations

from typing import Any

import pytest

from python_backends.nouns.request import Feedback, Finish, Idle, WaitReason
from python_backends.nouns.step import Evicted, Started
from python_backends.streams import delivery
from python_backends.streams.table import FAILED_INSIDE
from tests.support.stream_table import MS, House, crash, crowd, running, waiting_for_company


def test_the_first_token_is_sent_at_once_and_the_last_ends_the_stream() -> None:
    house = running()
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn()
    assert house.received(1) == [50]
    house.tokens((1, 0, 1, 51, Finish.LENGTH))
    house.turn()
    assert house.received(1) == [50, 51]
    assert house.finals(1) == 1
    assert house.windows(1)[-1].finish is Finish.LENGTH
    assert len(house.table) == 0


def test_early_tokens_are_held_and_known_ones_dropped() -> None:
    house = running()
    house.tokens((1, 0, 1, 51, Finish.RUNNING))
    house.turn()
    assert house.received(1) == []
    house.tokens((1, 0, 0, 50, Finish.RUNNING), (1, 0, 0, 99, Finish.RUNNING))
    house.turn()
    assert house.received(1) == [50, 51]


def test_tokens_of_an_earlier_life_are_dropped_and_the_request_goes_on_behind_what_was_delivered() -> None:
    house = running()
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.table.instance_lost(0)
    house.table.instance_ready(0)
    house.turn()
    again = house.submitted[-1]
    assert (again.request_epoch, again.delivered.tolist()) == (1, [50])
    house.tokens((1, 0, 1, 99, Finish.RUNNING))
    house.tokens((1, 1, 1, 51, Finish.STOP))
    house.turn()
    assert house.received(1) == [50, 51]


def test_a_stream_whose_client_has_its_first_tokens_goes_on_after_them() -> None:
    house = House()
    house.table.instance_ready(0)
    assert house.accept(
        1, delivered=(50, 51), echo="go", sampling={"log_probs": True, "num_top_log_probs": 1}
    )
    assert house.submitted[-1].delivered.tolist() == [50, 51]
    house.start(1)
    house.tokens((1, 0, 1, 99, Finish.RUNNING), (1, 0, 2, 52, Finish.LENGTH))
    house.turn()
    (window,) = house.windows(1)
    assert (window.tokens.tolist(), window.start, window.num_sent) == ([50, 51, 52], 0, 2)
    assert (window.finish, window.echo, window.cum_log_prob) == (Finish.LENGTH, "", 0.0)
    assert window.log_probs is not None
    assert len(window.log_probs.chosen) == 1


def test_the_pace_of_a_stream_that_goes_on_is_that_of_its_new_tokens() -> None:
    house = House()
    house.table.instance_ready(0)
    paces = house.metrics.histograms["gapless_time_per_output_token_seconds"]
    house.accept(1, delivered=(50, 51))
    house.table.feedback(Feedback(1, 0, gone=True))
    house.turn()
    assert sum(paces.counts) == 0
    house.accept(2, delivered=(50, 51))
    house.tokens((2, 0, 2, 52, Finish.RUNNING))
    house.turn(ms=500)
    house.tokens((2, 0, 3, 53, Finish.LENGTH))
    house.turn()
    assert (sum(paces.counts), paces.sum) == (1, 0.5)


def test_one_request_too_many_is_refused_and_costs_the_others_nothing() -> None:
    house = running(max_open=1)
    assert not house.accept(2)
    house.tokens((1, 0, 0, 50, Finish.STOP))
    house.turn()
    assert house.finals(1) == 1
    assert house.accept(3)


def test_a_stream_that_has_ended_waits_for_nothing() -> None:
    house = House()
    house.table.instance_ready(0)
    house.accept(1)
    house.turn()
    assert house.table.waiting({})[WaitReason.STEP] == 1
    house.table.fail(1, "it can't go on")
    assert not any(house.table.waiting({}).values())


def test_an_evicted_prompt_waits_again_in_this_life_and_while_its_stream_is_open() -> None:
    """Prompts of three tokens."""
    house = House()
    house.table.instance_ready(0)
    assert house.accept(1)
    house.turn()
    house.start(1)
    house.table.evicted(Evicted(1, 7))
    house.table.evicted(Evicted(2, 0))
    assert house.table.num_queued_tokens == 0
    house.table.evicted(Evicted(1, 0))
    assert house.table.num_queued_tokens == 3
    house.start(1)
    assert house.table.num_queued_tokens == 0
    house.table.fail(1, "it can't go on")
    house.table.evicted(Evicted(1, 0))
    assert house.table.num_queued_tokens == 0


def test_prompts_without_a_slot_are_bounded_and_an_instance_death_brings_them_back() -> None:
    """Prompts of three tokens. What is already in is never refused."""
    house = House({"max_queued_tokens": 5})
    house.table.instance_ready(0)
    assert house.accept(1)
    assert not house.accept(2)
    house.start(1)
    assert house.accept(3)
    assert not house.accept(4)
    house.table.instance_lost(0)
    assert house.table.num_queued_tokens == 6
    house.table.feedback(Feedback(1, 0, gone=True))
    house.table.feedback(Feedback(3, 0, gone=True))
    house.turn()
    assert house.table.num_queued_tokens == 0
    assert house.accept(5)


def test_an_answer_that_goes_on_was_let_in_before() -> None:
    """Prompts of three tokens."""
    house = House({"max_queued_tokens": 5})
    assert house.accept(1)
    assert not house.accept(2)
    assert house.accept(3, delivered=(50, 51))
    assert house.table.num_queued_tokens == 6


def test_a_prompt_larger_than_the_whole_bound_is_taken_when_nobody_waits() -> None:
    house = House({"max_queued_tokens": 1})
    assert house.accept(1)


def test_a_stop_word_ends_the_answer_where_the_detokenizer_found_it() -> None:
    house = running()
    house.tokens(*[(1, 0, index, 50 + index, Finish.RUNNING) for index in range(5)])
    house.turn()
    house.table.feedback(Feedback(1, 5, stopped_at=3))
    house.turn()
    assert house.cancelled == [1]
    assert house.windows(1)[-1].finish is Finish.STOP
    assert house.windows(1)[-1].tokens.tolist()[-1] == 52
    assert house.finals(1) == 1


def test_a_client_that_is_gone_frees_its_slot_and_still_gets_one_last_answer() -> None:
    house = running()
    house.turn(ms=300)  # a probe
    house.table.feedback(Feedback(1, 0, gone=True))
    house.turn()
    assert house.cancelled == [1]
    assert house.finals(1) == 1
    assert house.windows(1)[-1].finish is Finish.CANCELLED


def test_a_client_whose_windows_are_no_longer_dispatched_is_gone() -> None:
    """Newer servers don't run the later steps of a cancelled request: its
    silence while others are confirmed is the only sign.
    """
    house = running()
    house.accept(2)
    for number in (1, 2):
        house.tokens((number, 0, 0, 50, Finish.RUNNING))
    house.turn()
    for index in range(1, 8):
        house.turn(ms=1000)
        house.tokens((2, 0, index, 50, Finish.RUNNING))
        house.turn()
        house.table.feedback(Feedback(2, index))
        house.table.feedback(Feedback(2, index))
    house.turn()
    assert house.cancelled == [1]
    assert house.finals(1) == 1
    assert house.finals(2) == 0


def test_a_deadline_ends_a_request_that_waits_as_well_as_one_that_runs() -> None:
    house = House()
    house.accept(1, deadline_ns=house.now_ns + 100 * MS)
    house.table.instance_ready(0)
    house.accept(2, deadline_ns=house.now_ns + 200 * MS)
    house.tokens((2, 0, 0, 50, Finish.RUNNING))
    house.turn(ms=99)
    assert house.finals(1) == 0
    house.turn(ms=2)
    assert house.windows(1)[-1].finish is Finish.DEADLINE
    house.turn(ms=100)
    assert house.received(2) == [50]
    assert house.windows(2)[-1].finish is Finish.DEADLINE
    assert 2 in house.cancelled


def test_an_answer_that_is_not_streamed_comes_in_one_piece() -> None:
    house = House()
    house.table.instance_ready(0)
    house.accept(1, stream=False, stop_words=("x",), echo="user text")
    for index in range(9):
        house.tokens((1, 0, index, 50 + index, Finish.LENGTH if index == 8 else Finish.RUNNING))
        house.turn(ms=50)
    windows = house.windows(1)
    assert all(window.silent and not window.emit for window in windows[:-1])
    assert windows[-1].tokens.tolist() == list(range(50, 59))
    assert windows[-1].num_sent == 0
    assert [window.echo for window in windows if window.echo] == ["user text"]


def test_a_lone_client_whose_window_is_lost_is_gone_once_the_detokenizer_has_nothing_to_do() -> None:
    house = running()
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn()
    house.turn(ms=300)
    house.table.idle(Idle(house.now_ns))
    house.turn(ms=250)
    assert house.finals(1) == 0, "it may be on its way"
    house.turn(ms=300)
    house.table.idle(Idle(house.now_ns))
    house.turn(ms=250)
    assert house.cancelled == [1]
    assert house.finals(1) == 1


def test_a_window_that_the_server_took_late_is_missed_late() -> None:
    """A send that waited for the server: what the detokenizer said
    meanwhile tells nothing about this window.
    """
    house = running()
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn()
    said = Idle(house.now_ns + 900 * MS)
    house.now_ns += 1000 * MS
    house.table.handed_over(house.sent[1][-1], house.now_ns)
    house.table.idle(said)
    house.turn(ms=250)
    assert house.finals(1) == 0


def test_windows_that_nobody_confirms_end_their_stream_and_keep_nobody_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a detokenizer that died with windows inside."""
    monkeypatch.setattr(delivery, "MAX_UNACKNOWLEDGED", 1)
    house = running()
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn()
    house.tokens((1, 0, 1, 51, Finish.RUNNING))
    for _ in range(29):
        house.turn(ms=1000)
        assert house.table.wait_s() == 0.25
    assert house.finals(1) == 0
    house.turn(ms=2000)
    assert house.cancelled == [1]
    assert house.finals(1) == 1


def test_only_a_request_that_was_alone_in_a_crash_is_failed() -> None:
    """Requests 1, 2 and 3; whoever computes beside or is 2 sees the instance die."""
    house = House()
    house.table.instance_ready(0)
    for number in (1, 2, 3):
        house.accept(number)
        house.start(number)
    crash(house)
    assert [submit.request.request_id for submit in house.submitted[-3:]] == [
        1,
        2,
        3,
    ], "after one crash all re-enter together"
    for number in (1, 2, 3):
        house.start(number, epoch=1)
    crash(house)
    assert house.submitted[-1].request.request_id == 1, "after two, one at a time"
    house.start(1, epoch=2)
    house.tokens(*[(1, 2, index, 50, Finish.RUNNING) for index in range(4)])
    house.turn()
    assert 1 in house.cancelled, "it has passed and makes room for the next"
    assert house.submitted[-1].request.request_id == 2
    house.start(2, epoch=2)
    crash(house)
    assert house.sent[2][-1].error
    assert house.finals(2) == 1
    house.start(3, epoch=2)
    house.tokens(*[(3, 2, index, 50, Finish.RUNNING) for index in range(4)])
    house.turn()
    house.turn()
    last = {submit.request.request_id: submit.request_epoch for submit in house.submitted}
    for number in (1, 3):
        house.start(number, last[number])
        house.tokens(*[(number, last[number], index, 50, Finish.LENGTH) for index in range(4, 5)])
    house.turn()
    assert house.finals(1) == house.finals(3) == 1
    assert len(house.received(1)) == 5


def on_trial(**options: Any) -> House:
    """Request 1 is alone in the instance after two crashes."""
    house = House()
    house.table.instance_ready(0)
    house.accept(1, **options)
    house.accept(2)
    for epoch in (0, 1):
        house.start(1, epoch)
        house.start(2, epoch)
        crash(house)
    return house


def test_an_answer_that_ended_on_trial_just_before_a_crash_is_not_failed() -> None:
    """Its deadline passed: the answer has gone out already when the crash
    is heard of, and nothing may come behind it.
    """
    house = on_trial(deadline_ns=2_000_000_000)
    house.now_ns = 2_000_000_000
    last = [out for out in house.table.due() if out.request_id == 1]
    assert [out.final for out in last] == [True]
    house.table.instance_lost(0)
    assert [out for out in house.table.due() if out.request_id == 1] == []


def test_an_answer_whose_last_token_came_just_before_a_crash_is_whole() -> None:
    house = on_trial()
    house.tokens((1, 2, 0, 50, Finish.LENGTH))
    crash(house)
    assert house.received(1) == [50]
    assert house.windows(1)[-1].finish is Finish.LENGTH


@pytest.mark.parametrize("broken", [1, 2, 3])
def test_a_stream_whose_response_fails_inside_takes_none_of_the_others_along(broken: int) -> None:
    house = House()
    house.table.instance_ready(0)
    for number in (1, 2, 3):
        house.accept(number)
        house.start(number)
    stream = house.table.find(broken)
    assert stream is not None
    stream.tokens = [None]  # type: ignore[list-item]  # no window can be made of this
    house.tokens(*[(number, 0, 0, 50, Finish.LENGTH) for number in (1, 2, 3) if number != broken])
    house.table.fail(broken, "something")
    answers = {out.request_id: out for out in [*house.table.due(), *house.table.due()]}
    assert answers.keys() == {1, 2, 3}
    assert all(out.final for out in answers.values())
    assert answers.pop(broken).error == FAILED_INSIDE
    assert all(out.window is not None and not out.error for out in answers.values())
    house.table.check_integrity()
    assert len(house.table) == 0


@pytest.mark.parametrize("broken", [1, 2, 3])
def test_a_last_response_that_fails_inside_takes_no_other_last_response_along(broken: int) -> None:
    house = crowd(1, 2, 3)
    stream = house.table.find(broken)
    assert stream is not None
    stream.context_tokens = None  # type: ignore[assignment]  # no window can be made with this
    house.tokens(*[(number, 0, 1, 51, Finish.LENGTH) for number in (1, 2, 3)])
    answers = {out.request_id: out for out in [*house.table.due(), *house.table.due()]}
    assert {number: out.error for number, out in answers.items()} == {
        number: FAILED_INSIDE if number == broken else "" for number in (1, 2, 3)
    }
    assert all(out.final for out in answers.values())
    house.table.check_integrity()
    assert len(house.table) == 0


def test_the_error_of_a_response_that_fails_inside_waits_for_the_windows_under_way() -> None:
    house = running()
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn()
    stream = house.table.find(1)
    assert stream is not None
    stream.context_tokens = None  # type: ignore[assignment]
    house.tokens((1, 0, 1, 51, Finish.LENGTH))
    assert [*house.table.due(), *house.table.due()] == []
    house.table.feedback(Feedback(1, 1))
    assert [(out.final, out.error) for out in house.table.due()] == [(True, FAILED_INSIDE)]


def test_windows_of_streams_that_have_ended_hold_up_no_other_when_they_are_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two first windows are under way, as many as may be; both streams end before they are confirmed."""
    monkeypatch.setattr(delivery, "MAX_IN_FLIGHT", 2)
    house = crowd(3)
    for number in (1, 2):
        house.accept(number)
        house.tokens((number, 0, 0, 50, Finish.RUNNING))
        house.turn(ms=1)
    house.tokens(*[(number, 0, 1, 51, Finish.LENGTH) for number in (1, 2)])
    house.turn()
    house.tokens((3, 0, 1, 51, Finish.RUNNING))
    house.turn()
    assert house.received(3) == [50]
    for number in (1, 2):
        house.table.feedback(Feedback(number, 1))
    house.turn()
    assert house.received(3) == [50, 51]


def test_windows_of_many_clients_that_hang_up_at_once_hold_up_no_other_stream_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their windows are never confirmed. One more at a time finds out whether the detokenizer works."""
    monkeypatch.setattr(delivery, "MAX_IN_FLIGHT", 2)
    house = crowd(3, 4)
    for number in (1, 2):
        house.accept(number)
        house.tokens((number, 0, 0, 50, Finish.RUNNING))
        house.turn(ms=1)
    house.tokens(*[(number, 0, 1, 51, Finish.RUNNING) for number in (3, 4)])
    house.turn()
    assert house.table.wait_s() <= 0.25
    house.turn(ms=200)
    assert [house.received(number) for number in (3, 4)] == [[50], [50]]
    house.turn(ms=60)
    house.turn(ms=1)
    assert [house.received(number) for number in (3, 4)] == [[50, 51], [50]]
    house.table.feedback(Feedback(3, 2))
    house.turn()
    assert house.received(4) == [50, 51]


def test_tokens_of_a_prefix_are_those_of_the_prompt_found_when_a_request_first_gets_a_slot() -> None:
    house = House()
    house.table.instance_ready(0)
    house.accept(1)
    house.table.started(Started(1, 0, 3))
    house.table.evicted(Evicted(1, 0))
    house.table.started(Started(1, 0, 8))  # its own blocks
    house.accept(2)
    house.table.started(Started(2, 0, 8))  # tokens of its answer came from an instance that died
    assert house.metrics.counters["gapless_prefix_hit_tokens_total", ()] == 6


def test_windows_tell_how_much_of_the_prompt_was_found_until_its_slot_was_taken_from_it() -> None:
    house = House()
    house.table.instance_ready(0)
    house.accept(1)
    for num_found in (1, 1):  # the second one while it is in its slot, of a prompt beside it
        house.table.started(Started(1, 0, num_found))
    house.table.evicted(Evicted(1, 0))
    for num_found in (1, 1):  # its own, or the same ones again
        house.table.started(Started(1, 0, num_found))
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn()
    assert [window.num_cached_tokens for window in house.windows(1)] == [2]
    assert house.metrics.counters["gapless_prefix_hit_tokens_total", ()] == 2


def test_a_stream_that_failed_is_not_taken_for_one_whose_client_is_gone() -> None:
    """A send waited for the server for a while and failed then;
    meanwhile the detokenizer had nothing to do.
    """
    house = running()
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn()
    house.now_ns += 1000 * MS
    house.table.not_sent(house.sent[1][-1], "a part of the answer could not be sent")
    house.table.idle(Idle(house.now_ns))
    house.turn()
    assert house.sent[1][-1].error == "a part of the answer could not be sent"


def test_a_failed_stream_whose_deadline_passes_is_not_looked_at_again_and_again() -> None:
    """Its error waits until the window before it is confirmed."""
    house = House()
    house.table.instance_ready(0)
    house.accept(1, deadline_ns=house.now_ns + 300 * MS)
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn()
    house.table.fail(1, "the engine failed")
    house.turn(ms=400)
    assert house.finals(1) == 0
    assert house.table.wait_s() > 0, "a busy loop"


def test_nothing_follows_a_part_that_was_lost() -> None:
    house = waiting_for_company()
    house.table.feedback(Feedback(1, 1, error="a part could not be sent"))
    house.turn()
    assert house.received(1) == [50]
    assert house.sent[1][-1].error == "a part could not be sent"
    assert house.finals(1) == 1


@pytest.mark.parametrize(("began_ms", "reason"), [(0, "cancelled"), (900, "error")])
def test_windows_that_died_with_their_detokenizer_are_no_sign_that_a_client_left(
    began_ms: int, reason: str
) -> None:
    house = running()
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn()
    began_ns = house.now_ns + began_ms * MS if began_ms else 0
    house.turn(ms=800)
    house.turn(ms=400)
    house.table.idle(Idle(house.now_ns, began_ns))
    house.turn(ms=250)
    assert house.finals(1) == 1
    assert house.metrics.counters["gapless_requests_total", (("outcome", reason),)] == 1


def test_a_server_that_stands_still_with_a_window_inside_costs_no_client_its_answer() -> None:
    """The detokenizer has nothing to do meanwhile, and says so; the streams
    thread waits in the sending of another window.
    """
    house = running()
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn()
    began_ns = house.now_ns = house.now_ns + 300 * MS
    [probe] = house.table.due()
    said = [Idle(began_ns + ms * MS) for ms in range(250, 8000, 250)]
    house.now_ns += 8000 * MS
    house.table.handed_over(probe, began_ns)
    for idle in said:
        house.table.idle(idle)
    house.turn()
    assert house.finals(1) == 0
    house.table.feedback(Feedback(1, 1))
    house.turn(ms=100)
    assert house.finals(1) == 0


def test_a_machine_that_stands_still_for_a_minute_costs_no_client_its_answer() -> None:
    house = running()
    house.tokens((1, 0, 0, 50, Finish.RUNNING))
    house.turn()
    house.turn(ms=60_000)
    assert house.finals(1) == 0


def test_a_lost_instance_makes_the_next_token_of_each_answer_that_ran_there_late() -> None:
    house = House()
    house.table.instance_ready(0)
    for number in (1, 2, 3, 4):
        house.accept(number)
        house.turn()
    for number in (1, 2, 3):
        house.start(number)
    house.tokens((1, 0, 0, 50, Finish.RUNNING), (3, 0, 0, 50, Finish.STOP))
    house.table.instance_lost(0)
    assert house.metrics.sums("gapless_late_tokens_total", "cause")["instance_lost"] == 1
