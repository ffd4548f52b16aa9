"""Records of answers on their way to the learner: those of a learner that is away take little memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backends.nouns.messages import AnswerRecord, LengthAnswer
from python_backends.nouns.request import Finish
from python_backends.wires import records
from python_backends.wires.records import LearnerEnd, RecordsEnd


def record(number: int, user_input: str = "") -> AnswerRecord:
    return AnswerRecord(float(number), "Say it", 9, 3, 20, Finish.STOP, LengthAnswer(), user_input)


def test_records_wait_for_a_learner_up_to_so_many_bytes_and_the_oldest_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_BYTES", 100_000)
    scheduler = RecordsEnd(tmp_path)
    for number in range(100):
        scheduler.send([record(number, "x" * 10_000)])
        assert sum(map(len, scheduler._waiting)) == scheduler._num_bytes <= 100_000
    learner = LearnerEnd(tmp_path)
    heard: list[AnswerRecord] = []
    while scheduler._waiting or not heard or heard[-1].at_s < 99:
        scheduler.send([])
        heard += learner.receive(0.01)
    numbers = [int(each.at_s) for each in heard]
    assert numbers == sorted(numbers)
    assert numbers[-9:] == [*range(91, 100)]
    assert len(numbers) < 100
    scheduler.close()
    learner.close()
