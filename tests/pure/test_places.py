"""Where each instance runs: processors are divided, GPUs are given out in turn."""

from __future__ import annotations

from pathlib import Path

from python_backends.launcher.fleets.places import VISIBLE, Place, places, visible_gpus


def test_a_single_instance_has_all_processors() -> None:
    assert places(1, None, ["0", "1"]) == [Place(None)]
    assert places(1, frozenset({0, 3}), []) == [Place(frozenset({0, 3}))]


def test_several_instances_share_the_processors_and_no_two_have_the_same() -> None:
    found = [place.processors for place in places(3, frozenset(range(8)), [])]
    assert found == [{0, 3, 6}, {1, 4, 7}, {2, 5}]


def test_more_instances_than_processors_take_turns() -> None:
    assert [place.processors for place in places(3, frozenset({4, 5}), [])] == [{4}, {5}, {4}]


def test_gpus_are_given_out_in_turn(tmp_path: Path) -> None:
    found = places(3, frozenset(range(6)), ["0", "2"])
    assert [place.environment[VISIBLE] for place in found] == ["0", "2", "0"]
    for name in ("nvidia2", "nvidia10", "nvidiactl"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({VISIBLE: "3,1"}, tmp_path) == ["3", "1"]
