"""A job learns, survives being killed, and ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from python_backends.finetuning.alone import train
from python_backends.finetuning.export import export
from python_backends.finetuning.jobs import Job, JobError
from python_backends.nouns.training import LayerPlan
from python_backends.settings import ROOT
from tests.support.finetuning_jobs import MODULES, new_job, settings, weights
from tests.support.tiny_models import TinyModel


def test_a_job_learns_and_ends(one: TinyModel, tmp_path: Path) -> None:
    job = new_job(tmp_path, steps=30, learning_rate=1e-2)
    train(job, settings(one))
    fields, lines = Job(job.directory).fields, job.losses
    assert fields["status"] == "succeeded"
    assert fields["fine_tuned_model"] == f"ft:tiny:tiny:{job.id}"
    assert [line["step"] for line in lines] == list(range(1, 31))
    assert fields["trained_tokens"] == sum(line["tokens"] for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
    assert [event["message"] for event in job.events] == ["started", "succeeded"]
    assert (job.directory / "loss.svg").stat().st_size > 1000
    assert export(job, tmp_path / "early", 3) == 3
    with pytest.raises(JobError, match=r"--step 4: ftjob-\w+ has checkpoints after steps 3, 6, 9,"):
        export(job, tmp_path / "none", 4)
    with pytest.raises(JobError, match=r"ended already \(succeeded\)"):
        train(job, settings(one))


def test_a_job_that_is_killed_three_times_has_the_losses_of_one_that_is_not(
    one: TinyModel, tmp_path: Path
) -> None:
    """Once in the middle of a backward pass, once while a checkpoint is written, once more in a pass."""
    killed, undisturbed = new_job(tmp_path / "killed", steps=12), new_job(tmp_path / "whole", steps=12)
    for when, count in (("backward", 11), ("checkpoint", 3), ("backward", 17)):
        before = len(checkpoints_of(killed))
        assert _trained(one, killed, when, count) == -signal.SIGKILL
        if when == "checkpoint":
            assert list((killed.directory / "checkpoints").glob("*.partial"))
            assert len(checkpoints_of(killed)) >= before
    assert _trained(one, killed, "never", 0) == 0
    assert _trained(one, undisturbed, "never", 0) == 0
    found, expected = killed.losses, undisturbed.losses
    assert [line["step"] for line in found] == [line["step"] for line in expected] == list(range(1, 13))
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in expected], rel=1e-5)
    for key, each in weights(killed).items():
        assert torch.allclose(each, weights(undisturbed)[key], atol=1e-5), key
    messages = [event["message"] for event in killed.events]
    assert len([message for message in messages if message.startswith("goes on after step")]) == 3
    assert messages[-1] == "succeeded"


def checkpoints_of(job: Job) -> list[Path]:
    return [path for path in (job.directory / "checkpoints").glob("step-*") if path.suffix != ".partial"]


def _trained(tiny: TinyModel, job: Job, when: str, count: int) -> int:
    words = ("-m", "tests.support.killed_trainer", tiny.directory, job.directory, when, count)
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, check=False, timeout=120, capture_output=True).returncode


def test_a_loss_that_is_not_finite_fails_the_job_and_keeps_the_last_checkpoint(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from python_backends.engine.torch.training.session import TrainingSession

    job, install, num_installed = new_job(tmp_path, steps=9), TrainingSession.install, 0

    def breaking(session: TrainingSession, plans: tuple[LayerPlan, ...]) -> None:
        nonlocal num_installed
        num_installed += 1
        install(session, plans)
        if num_installed == 6:
            session.loss = lambda first, last: float("nan")

    monkeypatch.setattr(TrainingSession, "install", breaking)
    train(job, settings(one))
    fields = Job(job.directory).fields
    assert fields["status"] == "failed"
    assert fields["error"]["param"] == "learning_rate"
    assert len(job.losses) == 5
    assert len(weights(job)) == 2 * 3 * len(MODULES)


def test_a_cancelled_job_ends_and_another_process_may_not_train_it_meanwhile(
    one: TinyModel, tmp_path: Path
) -> None:
    job = new_job(tmp_path, steps=9)
    with job.locked():
        with pytest.raises(JobError, match="another process trains it"):
            train(Job(job.directory), settings(one))
        job.cancel()
        assert Job(job.directory).status == "queued"
    train(job, settings(one))
    assert (Job(job.directory).status, job.losses) == ("cancelled", [])
    other = new_job(tmp_path, steps=9)
    other.cancel()
    assert Job(other.directory).status == "cancelled"
    with pytest.raises(JobError, match=r"ended already \(cancelled\)"):
        other.cancel()


def test_a_job_that_ended_after_it_was_read_is_neither_cancelled_nor_trained(
    one: TinyModel, tmp_path: Path
) -> None:
    """What the process that trained it has written stays."""
    job = new_job(tmp_path, steps=9)
    read_before = [Job(job.directory) for _ in range(2)]
    job.end("succeeded", "succeeded", fine_tuned_model="ft:tiny")
    with pytest.raises(JobError, match=r"ended already \(succeeded\)"):
        read_before[0].cancel()
    with pytest.raises(JobError, match=r"ended already \(succeeded\)"):
        train(read_before[1], settings(one))
    fields = Job(job.directory).fields
    assert (fields["status"], fields["fine_tuned_model"]) == ("succeeded", "ft:tiny")
