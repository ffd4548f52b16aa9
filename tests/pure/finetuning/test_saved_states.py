"""Saved states of a job, and those that a caller saves by name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

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


def test_the_last_one_alone_keeps_its_moments(tmp_path: Path) -> None:
    """When the others were written stays known."""
    moments = {f"a.weight.{name}": np.full((2, 3), 0.5, np.float32) for name in ("exp_avg", "exp_avg_sq")}
    for step in (1, 2, 3):
        saved_states.save(tmp_path, Place(step, 100, ends_pass=True), state(step) | moments)
        os.utime(tmp_path / f"step-{step:06d}" / "state.json", (step, step))
    found = [saved_states.read(tmp_path, step)[1] for step in saved_states.steps(tmp_path)]
    assert [each["a.weight"][0, 0] for each in found] == [1.0, 2.0, 3.0]
    assert [len(each) for each in found] == [1, 1, 3]
    assert found[-1]["a.weight.exp_avg"].tolist() == moments["a.weight.exp_avg"].tolist()
    assert saved_states.times(tmp_path) == {1: 1.0, 2: 2.0, 3: 3.0}


def test_one_that_can_not_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_named(tmp_path, "law", PLACE, state(1.0))
    fail_to_save(tmp_path, monkeypatch)
    assert read_named(tmp_path, "law")[1]["a.weight"][0, 0] == 1.0


def fail_to_save(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(saved_states, "save_file", full)
        with pytest.raises(OSError, match="No space"):
            save_named(directory, "law", PLACE, state(9.0))


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    for number in range(NUM_NAMED_KEPT + 2):
        save_named(tmp_path, f"s{number}", PLACE, state(number))
        os.utime(tmp_path / f"s{number}", (number, number))
    assert len(list(tmp_path.iterdir())) == NUM_NAMED_KEPT
    with pytest.raises(OSError, match="s1"):
        read_named(tmp_path, "s1")
    assert read_named(tmp_path, "s2")[0] == PLACE


class KilledError(BaseException):
    """In place of the process's death."""


def kill_at_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a directory that holds a state, once its first file is deleted."""
    delete = shutil.rmtree

    def killed(path: Path, *arguments: Any, **named: Any) -> None:
        if (path / "state.json").exists():
            (path / "state.json").unlink()
            raise KilledError
        delete(path, *arguments, **named)

    monkeypatch.setattr(shutil, "rmtree", killed)


def test_a_process_that_is_killed_while_it_deletes_an_old_state_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        saved_states.save(tmp_path, Place(step, 100, ends_pass=False), state(step))
    with monkeypatch.context() as patched:
        kill_at_deletion(patched)
        with pytest.raises(KilledError):
            saved_states.save(tmp_path, Place(3, 100, ends_pass=False), state(3))
    assert saved_states.steps(tmp_path) == [2, 3]
    saved_states.save(tmp_path, Place(4, 100, ends_pass=False), state(4))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000004"]


def test_what_is_no_whole_state_is_deleted_or_replaced(tmp_path: Path) -> None:
    for step in (1, 4):
        (tmp_path / f"step-{step:06d}").mkdir()
    (tmp_path / "step-000002").mkdir()
    (tmp_path / "step-000002" / "state.json").write_text("{")
    for step in (3, 4):
        saved_states.save(tmp_path, Place(step, 100, ends_pass=True), state(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000004"]
    found = saved_states.last(tmp_path)
    assert found is not None
    assert found[1]["a.weight"][0, 0] == 4.0


def test_what_can_not_be_deleted_does_not_keep_a_state_from_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object, **__: object) -> Path:
        raise OSError(16, "Device or resource busy")

    for step in (1, 2):
        saved_states.save(tmp_path, Place(step, 100, ends_pass=False), state(step))
    saved_states._write(tmp_path / "step-000003", PLACE, state(3))
    monkeypatch.setattr(Path, "rename", busy)
    monkeypatch.setattr(os, "unlink", busy)
    saved_states.save(tmp_path, PLACE, state(3))
    assert saved_states.steps(tmp_path) == [1, 2, 3]


def test_a_process_that_is_killed_while_it_replaces_a_state_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the new one has its name, and then before the old one is deleted."""
    save_named(tmp_path, "law", PLACE, state(1.0))
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if target == tmp_path / "law":
            raise KilledError
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(KilledError):
            save_named(tmp_path, "law", PLACE, state(2.0))
    assert read_named(tmp_path, "law")[1]["a.weight"][0, 0] == 2.0
    fail_to_save(tmp_path, monkeypatch)
    assert read_named(tmp_path, "law")[1]["a.weight"][0, 0] == 2.0
    with monkeypatch.context() as patched:
        kill_at_deletion(patched)
        with pytest.raises(KilledError):
            save_named(tmp_path, "law", PLACE, state(3.0))
    assert read_named(tmp_path, "law")[1]["a.weight"][0, 0] == 3.0
    save_named(tmp_path, "other", PLACE, state(4.0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["law", "other"]
