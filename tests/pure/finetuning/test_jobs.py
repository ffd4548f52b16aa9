"""A job's files may have been written by hand, cut off by a full disk, or be of another version: a bad job is
named, and the others go on.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands.finetune.progress import plot
from python_backends.finetuning import jobs
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.files import append_line, read_lines
from python_backends.finetuning.jobs import Job, JobError
from python_backends.instance.job_watch import JobWatch

OPTIONS = {
    "suffix": "law",
    "rank": 4,
    "alpha": 8.0,
    "targets": ["q_proj"],
    "learning_rate": 1e-3,
    "steps": 2,
}


def new_job(parent: Path) -> Job:
    fields = {"model": "tiny", "hyperparameters": {"batch_size": 4}, "seed": 4, "gapless": OPTIONS}
    ids = np.arange(6, dtype=np.int32)
    return jobs.create(parent, [Example(ids, ids >= 3), Example(ids[:2], ids[:2] >= 0)], fields)


class Taking:
    """What JobWatch uses of `Training`."""

    takes_jobs = True

    def __init__(self) -> None:
        self.offered: list[str] = []
        self.counts: tuple[int, ...] = ()

    def offer(self, job: Job, lock: Any) -> None:
        self.offered.append(job.id)
        lock.close()

    def count_jobs(self, counts: tuple[int, ...]) -> None:
        self.counts = counts


WRONG: dict[str, tuple[Any, str]] = {
    "id": ("ftjob-other", "id = 'ftjob-other': must be the name of its directory"),
    "status": ("done", "status = 'done': must be one of queued, running"),
    "created_at": ("yesterday", "created_at = 'yesterday': must be a whole number"),
    "model": (None, "model = None: must be a string"),
    "fine_tuned_model": (3, "fine_tuned_model = 3: must be a string"),
    "seed": (True, "seed = True: must be a whole number"),
    "hyperparameters": ([], "hyperparameters = []: must be a JSON object"),
    "hyperparameters.batch_size": (0, "batch_size = 0: must be a whole number between 1 and 4096"),
    "gapless": ("x", "gapless = 'x': must be a JSON object"),
    "gapless.suffix": ("../x", "suffix = '../x': must be the name of an adapter"),
    "gapless.alone": ("no", "alone = 'no': must be true or false"),
    "gapless.held_out_losses": ([1.5, "x"], "held_out_losses = [1.5, 'x']: must be a list of numbers"),
    "gapless.rank": (4.5, "rank = 4.5: must be a whole number between 1 and 256"),
    "gapless.alpha": (float("nan"), "alpha = nan: must be a number between 0.001 and 10000"),
    "gapless.targets": (["q_proj", 3], "targets = ['q_proj', 3]: must be a list of strings"),
    "gapless.learning_rate": ("1e-3", "learning_rate = '1e-3': must be a number between 0 and 1"),
    "gapless.steps": (10**400, "must be a whole number between 1 and"),
}


def _write(directory: Path, fields: Any) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "job.json").write_text(json.dumps(fields))


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_field_of_job_json_that_is_missing_or_wrong_is_named(
    name: str, is_there: bool, tmp_path: Path
) -> None:
    job, (value, says) = new_job(tmp_path), WRONG[name]
    fields = job.fields
    *outer, last = name.split(".")
    part = fields[outer[0]] if outer else fields
    if is_there:
        part[last] = value
    else:
        part.pop(last, None)
    _write(job.directory, fields)
    if not is_there and name in ("fine_tuned_model", "gapless.alone", "gapless.held_out_losses"):
        assert Job(job.directory).id == job.id
        return
    with pytest.raises(JobError) as refused:
        Job(job.directory)
    assert f"{job.id}: job.json: " in str(refused.value)
    assert (says if is_there else f"{last} = None: ") in str(refused.value)


def test_a_job_that_can_not_be_read_leaves_the_others_and_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, training = new_job(tmp_path), Taking()
    contents = {"a": b'{"id": "ftjob-a", "status": "queued"}', "b": b"[" * 100_000, "c": b"\xff", "d": b"[]"}
    for name, content in contents.items():
        (tmp_path / f"ftjob-{name}").mkdir()
        (tmp_path / f"ftjob-{name}" / "job.json").write_bytes(content)
    (tmp_path / "ftjob-e" / "job.json").mkdir(parents=True)
    (tmp_path / "ftjob-f").mkdir()
    os.mkfifo(tmp_path / "ftjob-f" / "job.json")
    watch: Any = JobWatch(tmp_path, training, "", lambda: None)  # type: ignore[arg-type]
    watch.look()
    watch.look()
    assert training.offered == [good.id, good.id]
    assert training.counts == (1, 0, 0, 6, 0)
    named = [record.message.split(":")[0] for record in caplog.records]
    assert sorted(named) == [f"ftjob-{name}" for name in "abcdef"]
    _write(tmp_path / "ftjob-a", good.fields | {"id": "ftjob-a"})
    watch.look()
    assert "ftjob-a" in training.offered, "it was mended"
    assert [job.id for job in jobs.all_jobs(tmp_path)] == sorted([good.id, "ftjob-a"], reverse=True)


def test_a_job_that_is_deleted_is_counted_no_more(tmp_path: Path) -> None:
    """One that has not ended, or that another process has, is not deleted."""
    job, training = new_job(tmp_path), Taking()
    with pytest.raises(JobError, match=r"it has not ended \(queued\): `cancel` ends it"):
        job.delete()
    job.end("succeeded", "succeeded")
    watch: Any = JobWatch(tmp_path, training, "", lambda: None)  # type: ignore[arg-type]
    watch.look()
    assert training.counts == (0, 0, 1, 0, 0)
    with Job(job.directory).locked(), pytest.raises(JobError, match="another process trains it"):
        job.delete()
    job.delete()
    watch.look()
    assert training.counts == (0, 0, 0, 0, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_a_full_disk_cuts_off_swallows_no_other(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append_line(path, {"message": "started"})
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            append_line(path, {"message": "no saved state"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    append_line(path, {"message": "again"})
    assert path.read_text() == '{"message": "started"}\n{"message": "again"}\n'


def test_lines_that_were_cut_off_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\x00\x00\n\xff\n[]\n3\n{"step": 2}\n{"ste')
    assert read_lines(path) == [{"step": 1}, {"step": 2}]
    append_line(path, {"step": 3})
    assert read_lines(path) == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_a_job_goes_on_with_the_lines_that_are_whole(tmp_path: Path) -> None:
    job = new_job(tmp_path)
    job.say("started")
    for step in (1, 2, 3):
        job.add_loss(step=step, loss=1.0, tokens=10)
    for name in ("events", "losses"):
        with (job.directory / f"{name}.jsonl").open("a") as file:
            file.write('{"step": 4}\n{"mess')
    job.say("goes on")
    assert [event["message"] for event in job.events] == ["started", "goes on"]
    assert job.mend(2) == 10
    assert [line["step"] for line in job.losses] == [1, 2]


def test_an_event_that_can_not_be_written_ends_no_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = new_job(tmp_path)
    (job.directory / "events.jsonl").mkdir()
    job.say("started")
    assert job.id in caplog.text
    assert "a line of events.jsonl is missing" in caplog.text


def test_examples_are_read_as_they_were_written_and_checked_by_number(tmp_path: Path) -> None:
    read = new_job(tmp_path).examples
    assert [example.ids.tolist() for example in read] == [[0, 1, 2, 3, 4, 5], [0, 1]]
    assert [example.learned.tolist() for example in read] == [[False] * 3 + [True] * 3, [True] * 2]
    read.check(most_tokens=6, vocabulary=6)
    with pytest.raises(ValueError, match="example 1 has 6 tokens; the server takes 5"):
        read.check(most_tokens=5, vocabulary=6)
    with pytest.raises(ValueError, match="example 1 has tokens outside of the vocabulary of 5"):
        read.check(most_tokens=6, vocabulary=5)


def test_without_matplotlib_a_line_says_that_there_is_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = new_job(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plot(job)
    assert "no picture of the loss: `pip install matplotlib`" in capsys.readouterr().err
    assert not (job.directory / "loss.svg").exists()
