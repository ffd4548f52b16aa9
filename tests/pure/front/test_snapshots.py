"""What the page is told: snapshots, rows and events."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from front.live.events import happened, restarted
from front.live.rows import Rows
from front.live.snapshot import MOST_EVENTS, Snapshots
from tests.support.clock import Clock
from tests.support.status import NOWHERE, instance, request, status, waiting


def plain(snapshot: Any) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(msgspec.json.encode(snapshot))
    return read


def test_a_snapshot_has_what_runs_what_waits_and_why() -> None:
    shot = plain(Snapshots(clock=Clock()).next(status(request(7), waiting(8, why="memory")), {}))
    assert (shot["answers"], shot["demo"], shot["open"], shot["waits"]) == (True, False, 2, {"memory": 1})
    [row], [waits] = shot["rows"], shot["waiting"]
    assert (row["instance"], row["row"], row["request"], row["phase"]) == (0, 0, 7, "decode")
    assert (row["tokens"], row["predicted_tokens"], row["predicted_range"]) == (20, 60, [40, 90])
    assert (waits["request"], waits["waits_for"], waits["place"]) == (8, "memory", 1)
    assert shot["instances"][0]["blocks"] == 100
    assert (shot["step_s"], shot["queue_wait_s"]) == (0.02, 2.5)
    assert (shot["tokens_per_s"], shot["gap_s"], shot["late"]) == (None, None, None), (
        "nothing to compare with"
    )


def test_a_snapshot_names_no_client_and_no_process() -> None:
    text = msgspec.json.encode(Snapshots().next(status(request(7), waiting(8)), {"front": 0})).decode()
    for secret in ("theirs", "pid", "here"):
        assert secret not in text


def test_the_second_snapshot_says_what_came_meanwhile() -> None:
    clock = Clock()
    made = Snapshots(demo=True, clock=clock)
    made.next(status(), {})
    clock.now_s += 0.5
    gaps = {"bounds_s": [0.001, 0.01], "counts": [4, 1, 0]}
    late = {"decode": 0, "host": 3}
    shot = made.next(status(generated_tokens=1100, gaps=gaps, late_tokens=late), {})
    assert (shot.demo, shot.tokens_per_s, shot.gap_s, shot.late) == (True, 200.0, 0.01, {"host": 3})
    clock.now_s += 0.5
    beyond = {"bounds_s": [0.001, 0.01], "counts": [4, 1, 1]}
    assert made.next(status(generated_tokens=0, gaps=beyond, late_tokens=late), {}).gap_s == 0.01
    made.forget()
    assert made.next(status(), {}).tokens_per_s is None


def test_without_a_scheduler_model_there_is_a_snapshot_too() -> None:
    made = Snapshots(clock=Clock())
    made.next(status(request(7)), {})
    shot = made.next({}, {})
    assert (shot.answers, shot.rows, shot.waiting, shot.instances) == (False, [], [], [])
    assert [each.text for each in shot.events] == ["the scheduler model does not answer"]
    assert made.next(status(), {}).events[-1].text == "the scheduler model answers again"


def test_events_have_numbers_and_the_latest_stay() -> None:
    made = Snapshots(clock=Clock())
    for count in range(MOST_EVENTS + 6):
        shot = made.next(status(), {"front": count})
    assert [each.number for each in shot.events] == list(range(6, MOST_EVENTS + 6))
    assert {each.text for each in shot.events} == {"front was started again"}


# --- events


def texts(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, str]]:
    return list(happened(before, now))


def test_a_crash_is_told_as_it_goes_on() -> None:
    ran = status(request(1), request(2), request(3))
    orphans = [
        waiting(number, number, "no_instance", instance=NOWHERE, life=1, tokens=20) for number in (1, 2, 3)
    ]
    dead = status(*orphans, instances=[instance(state="lost", slots=0)])
    back = status(*(request(number, life=1, phase="prompt") for number in (1, 2, 3)))
    assert texts(ran, dead) == [
        ("restart", "instance 0 is lost; its answers go on when an instance is ready")
    ]
    assert texts(dead, back) == [
        ("restart", "instance 0 is ready"),
        ("move", "3 answers go on in instance 0 from the last token that came"),
    ]
    assert texts(back, back) == []
    assert texts(ran, back) == [("move", "3 answers go on in instance 0 from the last token that came")], (
        "all was over between two looks"
    )


@pytest.mark.parametrize("life", [0, 1])
def test_a_request_without_a_token_that_gets_an_instance_is_no_event(life: int) -> None:
    assert texts(status(waiting(1, instance=NOWHERE, life=life)), status(request(1, life=life))) == []


def test_moves_and_evictions_are_told() -> None:
    two = [instance(0), instance(1)]
    before = status(request(1), request(2), instances=two)
    moved = status(
        request(1, instance=1, life=1), request(2), instances=[instance(0, evictions=2), instance(1)]
    )
    assert texts(before, moved) == [
        ("move", "instance 0: 2 answers lost a slot for want of memory, and will go on"),
        ("move", "one answer moved from instance 0 to 1"),
    ]
    assert texts(before, status(request(1), request(2)))[0] == ("restart", "instance 1 has ended")


def test_training_is_told_by_its_jobs() -> None:
    def jobs(**counts: int) -> dict[str, Any]:
        return status(training={"steps": 1, "tokens": 64, "loss": 2.0, "jobs": counts})

    assert texts(status(), jobs(running=1)) == [("training", "a fine-tuning job is being trained")]
    assert texts(jobs(running=1), jobs(succeeded=1)) == [("training", "a fine-tuning job has succeeded")]
    assert texts(jobs(running=1), jobs(running=1)) == []
    assert texts(status(), jobs(succeeded=3, failed=1)) == [], "old jobs, of which it has just heard"


def test_a_restart_is_counted_by_the_launcher() -> None:
    assert list(restarted({"front": 1}, {"front": 1, "scheduler": 1})) == [
        ("restart", "scheduler was started again")
    ]


# --- rows


def test_a_request_keeps_its_row_until_it_ends() -> None:
    rows = Rows()
    assert rows.of([request(1), request(2), request(3)], {0: 4}) == {1: 0, 2: 1, 3: 2}
    assert rows.of([request(2), request(3)], {0: 4}) == {2: 1, 3: 2}
    assert rows.of([request(2), request(3), request(4)], {0: 4}) == {2: 1, 3: 2, 4: 0}


def test_after_a_crash_an_answer_is_in_its_row_again() -> None:
    rows = Rows()
    rows.of([request(1), request(2)], {0: 4})
    assert rows.of([waiting(1, instance=NOWHERE), waiting(2, instance=NOWHERE), request(3)], {0: 4}) == {3: 2}
    assert rows.of([request(2), request(1), request(3)], {0: 4}) == {1: 0, 2: 1, 3: 2}


@pytest.mark.parametrize("slots", [2, 0])
def test_no_two_requests_have_one_row_and_no_row_is_beyond_the_slots(slots: int) -> None:
    rows = Rows()
    rows.of([request(1), request(2)], {0: slots})
    taken = rows.of([waiting(1), waiting(2), request(3), request(4)], {0: slots})
    assert sorted(taken.values()) == [0, 1]
    again = rows.of([request(1), request(2)], {0: slots})
    assert sorted(again.values()) == [0, 1]


def test_instances_have_rows_of_their_own() -> None:
    rows = Rows()
    assert rows.of([request(1), request(2, instance=1)], {0: 4, 1: 4}) == {1: 0, 2: 0}
    assert rows.of([request(1, instance=1), request(2, instance=1)], {0: 4, 1: 4}) == {1: 1, 2: 0}
