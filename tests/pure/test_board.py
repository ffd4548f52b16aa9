"""The board: what processes say of themselves, in memory that no cleaner and no full disk can take away."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from python_backends.linux.process_group import end_group, start_group
from python_backends.nouns.request import AdapterVersion, ModelLimits
from python_backends.settings import SettingsError, load
from python_backends.watching.board import LEAST_FD, MAX_INSTANCES, RECORD_BYTES, VARIABLE, Board
from python_backends.watching.instance_state import AdapterList, InstanceRecord, State

LIMITS = ModelLimits(100, 50, 4, 20, 16, "x", adapters=(AdapterVersion("a"), AdapterVersion("b", "2", "0f")))
CHILD = """
from python_backends.watching.board import Board
from python_backends.watching.instance_state import AdapterList, InstanceRecord, State
InstanceRecord(Board.inherited(), 0).write(State.READY)
Board.inherited().beat("tokenizer")
"""


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board()
    yield made
    made.close()


def test_each_beat_is_another_sign_and_touches_no_other_process(board: Board) -> None:
    assert board.sign("tokenizer") == 0
    signs = set()
    for _ in range(3):
        board.beat("tokenizer")
        signs.add(board.sign("tokenizer"))
    assert len(signs) == 3
    assert board.sign("scheduler") == 0


def test_a_record_is_read_as_it_was_written_and_stays_when_its_process_beats(board: Board) -> None:
    record = InstanceRecord(board, 0)
    assert record.read() == (State.DEAD, None)
    record.write(State.READY, LIMITS)
    before = record.sign()
    record.beat()
    assert record.sign() != before
    assert record.read() == (State.READY, LIMITS)
    record.write_on(State.STARTING)
    assert record.read() == (State.STARTING, LIMITS), "what an earlier life could take stays readable"


def test_a_record_half_written_by_a_process_that_died_says_nothing(board: Board) -> None:
    InstanceRecord(board, 0).write(State.READY)
    os.pwrite(board.fd, struct.pack("<I", 1), 8)
    assert InstanceRecord(board, 0).read() == (State.DEAD, None)


@pytest.mark.parametrize("name", ["instances", "max_instances"])
def test_there_can_be_as_many_instances_as_have_a_record_and_no_more(board: Board, name: str) -> None:
    file = Path(__file__).resolve().parents[2] / "gapless.toml"
    most = load(file, {f"cluster.{name}": str(MAX_INSTANCES)}).cluster.most_instances
    InstanceRecord(board, most - 1).write(State.READY)
    with pytest.raises(SettingsError, match=f"cluster.{name} = {most + 1}: must be"):
        load(file, {f"cluster.{name}": str(most + 1)})


def test_what_is_too_long_for_a_record_is_refused(board: Board) -> None:
    with pytest.raises(ValueError, match="instance-0 writes"):
        board.write("instance-0", bytes(RECORD_BYTES))
    board.write("tokenizer", b"the next record is whole")
    assert board.read("tokenizer") == b"the next record is whole"


def test_what_a_launcher_starts_writes_on_its_board(board: Board) -> None:
    """Through the shell that keeps the group, and another one, as tritonserver starts its stubs."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, VARIABLE: str(board.fd), "PYTHONPATH": str(root)}
    command = ["bash", "-c", 'exec "$@"', "bash", sys.executable, "-c", CHILD]
    process = start_group(command, environment, pass_fds=[board.fd])
    assert process.wait(60) == 0
    end_group(process, 0)
    assert board.fd >= LEAST_FD
    assert InstanceRecord(board, 0).read() == (State.READY, None)
    assert board.sign("tokenizer") > 0


@pytest.mark.parametrize("value", [None, "", "abc", "1", "987654"])
def test_a_process_that_no_launcher_started_has_a_board_of_its_own(value: str | None) -> None:
    """Also if the variable names something else that is open: nothing is written there."""
    environment = {name: text for name, text in os.environ.items() if name != VARIABLE} | (
        {VARIABLE: value} if value is not None else {}
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, cwd=root, capture_output=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == (b"", b"")


def test_of_more_adapters_than_a_record_holds_the_first_are_written(
    board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    adapters = tuple(AdapterVersion(f"adapter-{number}", "12", "0f" * 32) for number in range(10_000))
    record = InstanceRecord(board, 0)
    for count in (10_000, 100):  # and fewer later
        record.write(State.READY, LIMITS.changed(adapters=adapters[:count]))
        listed = AdapterList(board, 1).read()
        assert listed == adapters[: len(listed)]
        assert min(count, 9_000) <= len(listed) <= count
    assert "of 10000 adapters are not served" in caplog.text
    record.write(State.READY, LIMITS.changed(adapters=(AdapterVersion("x" * RECORD_BYTES), *adapters[:2])))
    assert AdapterList(board, 1).read() == ()


def test_the_longest_of_the_latest_steps_is_written_where_steps_take_seconds(board: Board) -> None:
    record, launcher = InstanceRecord(board, 0), InstanceRecord(board, 0)
    record.write(State.READY, LIMITS)
    for told_s, written_s in ((0.2, 0.0), (3.0, 3.0), (2.0, 3.0), (7.0, 7.0), (3.0, 3.0), (0.1, 0.0)):
        before = record.sign()
        record.beat(told_s)
        assert (launcher.longest_step_s(), launcher.read()) == (written_s, (State.READY, LIMITS))
        assert record.sign() != before
    record.beat(7.0)
    launcher.write_on(State.STARTING)  # its next life says it anew
    assert launcher.longest_step_s() == 0.0


def test_records_are_read_again_only_after_a_sign_of_life(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, listed = InstanceRecord(board, 0), AdapterList(board, 1)
    record.write(State.READY, LIMITS)
    assert listed.read() == LIMITS.adapters
    with monkeypatch.context() as patched:
        patched.setattr(board, "read", lambda name: 1 / 0)
        assert listed.read() == LIMITS.adapters
    record.write_limits(LIMITS.changed(adapters=()))
    assert listed.read() == ()


def test_the_adapters_are_those_of_an_instance_that_is_ready_and_stay_while_it_starts_again(
    board: Board,
) -> None:
    listed = AdapterList(board, 2)
    assert listed.read() == ()
    first, second = InstanceRecord(board, 0), InstanceRecord(board, 1)
    first.write(State.READY, LIMITS)
    assert listed.read() == LIMITS.adapters
    first.write_on(State.STARTING)
    assert listed.read() == LIMITS.adapters
    newer = (AdapterVersion("c", "1", "0c"),)
    second.write(State.READY, LIMITS.changed(adapters=newer))
    assert listed.read() == newer
    second.write_limits(LIMITS.changed(adapters=()))
    assert second.read()[0] is State.READY
    assert listed.read() == ()
