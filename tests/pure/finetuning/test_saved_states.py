"""States that a caller saves by name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from python_backends.finetuning import saved_states
from python_backends.finetuning.saved_states import NUM_NAMED_KEPT, Place, read_named, save_named

PLACE = Place(3, 100, ends_pass=False)


def state(value: float) -> saved_states.State:
    return {"a.weight": np.full((2, 3), value, np.float32)}


def test_a_state_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    for step, value in ((3, 1.0), (4, 2.0)):
        save_named(tmp_path, "law", Place(step, 100, ends_pass=False), state(value))
    place, found = read_named(tmp_path, "law")
    assert place.step == 4
    assert found["a.weight"].tolist() == state(2.0)["a.weight"].tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["law"]


def test_one_that_can_not_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_named(tmp_path, "law", PLACE, state(1.0))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_states, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        save_named(tmp_path, "law", PLACE, state(2.0))
    assert read_named(tmp_path, "law")[1]["a.weight"][0, 0] == 1.0


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    for number in range(NUM_NAMED_KEPT + 2):
        save_named(tmp_path, f"s{number}", PLACE, state(number))
        os.utime(tmp_path / f"s{number}", (number, number))
    assert len(list(tmp_path.iterdir())) == NUM_NAMED_KEPT
    with pytest.raises(OSError, match="s1"):
        read_named(tmp_path, "s1")
    assert read_named(tmp_path, "s2")[0] == PLACE
