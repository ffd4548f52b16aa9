"""The request log: bounded, quiet about texts, and what is taken from it to learn."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backends.nouns.request import Finish
from python_backends.prediction.request_log import FILE, RequestLog, instruction_id, teaches
from tests.support.records import ENCODER, record


@pytest.mark.parametrize(
    ("predicted", "actual", "learned"),
    [
        (211, 200, False),
        (189, 200, False),
        (111, 100, True),
        (89, 100, True),
        (20, 10, False),
        (10, 0, False),
        (223, 200, True),
    ],
)
def test_an_answer_teaches_when_the_prediction_was_off_by_more_than_10_tokens_and_10_percent(
    predicted: float, actual: int, learned: bool
) -> None:
    """An error of 11 at 200 tokens does not, one of 11 at 100 does, one of 10 never."""
    assert teaches(predicted, actual) is learned


def test_an_answer_that_was_cut_teaches_only_if_the_prediction_was_too_small() -> None:
    assert teaches(50, 100, ended=False)
    assert not teaches(500, 100, ended=False)


def log_of(directory: Path, max_answers: int = 100) -> RequestLog:
    return RequestLog(directory, max_answers)


def test_the_newest_answers_come_first_and_the_oldest_make_room(tmp_path: Path) -> None:
    log = log_of(tmp_path, 10)
    log.add([record(num_output=n) for n in range(1, 26)])
    assert [answer.num_output_tokens for answer in log.recent()] == list(range(25, 15, -1))
    assert log.num_answers() == 10
    log.close()


@pytest.mark.parametrize("kept_bytes", [20, 5000])
def test_a_damaged_log_is_put_aside_and_a_new_one_begins(
    tmp_path: Path, kept_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    log, file = log_of(tmp_path), tmp_path / FILE
    log.add([record(num_output=n) for n in range(1, 26)])
    log.close()
    damaged = file.read_bytes()[:kept_bytes] + b"no page of a log" * 100
    file.write_bytes(damaged)
    log = log_of(tmp_path)
    log.add([record(num_output=7)])
    assert log.num_answers() == 1
    log.close()
    assert (tmp_path / f"{FILE}.damaged").read_bytes()[:20] == damaged[:20]
    assert f"{file} is damaged" in caplog.text


def test_only_lengths_that_say_something_are_kept_and_cut_ones_are_marked(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    ends = [Finish.STOP, Finish.LENGTH, Finish.CANCELLED, Finish.DEADLINE, Finish.ERROR]
    log.add([record(finish=finish) for finish in ends] + [record(num_output=0, finish=Finish.CANCELLED)])
    assert [answer.ended for answer in reversed(log.recent())] == [1, 0, 0, 0]
    log.close()


def test_texts_are_kept_only_where_that_was_asked_for(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.add([record("A secret plan"), record("Say it", user_input="hello")])
    assert log.rows("instruction_text, input_text", 9) == [("Say it", "hello"), (None, None)]
    assert log.recent()[1].instruction == instruction_id("A secret plan")
    log.close()
    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_the_same_instruction_with_an_adapter_is_another_one(tmp_path: Path) -> None:
    log, digest = log_of(tmp_path), "0a1b" * 8
    log.add([record("Say it"), record("Say it").changed(adapter=digest)])
    tuned, plain = (answer.instruction for answer in log.recent())
    assert (tuned, plain) == (instruction_id("Say it", digest), instruction_id("Say it"))
    assert tuned != plain
    log.close()


def test_lessons_are_those_that_were_wrong_and_a_sample_that_stands_for_the_others(tmp_path: Path) -> None:
    """Of 1,000 ordinary answers 40 are taken, and each counts for 25;
    the 10 wrong ones count for themselves.
    """
    log = log_of(tmp_path, 10_000)
    log.add(
        [record(num_output=20, mean=20) for _ in range(1000)]
        + [record(num_output=90, mean=20) for _ in range(10)]
    )
    log.add([record(num_output=90, mean=20, features=False)])
    lessons = log.lessons(ENCODER, 20, 30)
    assert lessons is not None
    assert sorted(lessons.lengths.tolist()) == [20] * 40 + [90] * 10
    assert lessons.weights[lessons.lengths == 20].tolist() == [25] * 40
    assert lessons.weights[lessons.lengths == 90].tolist() == [1] * 10
    assert log.lessons("another encoder", 20, 30) is None
    log.close()


def test_the_reservoir_is_a_random_sample_of_all_that_is_kept(tmp_path: Path) -> None:
    log = log_of(tmp_path, 10_000)
    log.add([record(num_output=n, mean=n) for n in range(1, 2001)])
    lessons = log.lessons(ENCODER, 0, 500)
    assert lessons is not None
    assert len(lessons) == 500
    assert lessons.lengths.mean() == pytest.approx(1000, abs=100)
    log.close()


def test_readers_beside_the_writer_see_what_is_whole(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    reader = RequestLog(tmp_path)
    log.add([record()])
    assert reader.last_id() == 1
    log.close()
    reader.close()
