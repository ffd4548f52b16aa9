"""A job learns, survives being killed, and ends."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from commands.finetune.__main__ import main
from commands.finetune.alone import AtOnce, train
from python_backends.engine.adapter_directory import CONFIG, WEIGHTS
from python_backends.engine.protocol import BadAdapterError
from python_backends.engine.torch.adapters.beginning import read_beginning
from python_backends.engine.torch.training.lora_in_training import LoraInTraining
from python_backends.engine.torch.training.model import TrainedModel, load_trained_model
from python_backends.engine.torch.training.pack_run import PackRun
from python_backends.finetuning import saved_states
from python_backends.finetuning.export import export
from python_backends.finetuning.jobs import Job, JobError, create
from python_backends.finetuning.pack_memory import PackMemory
from python_backends.finetuning.trainer import Files, Progress, Trainer
from python_backends.nouns.training import LayerPlan, Tile
from tests.support import killed_trainer
from tests.support.finetuning_jobs import MODULES, new_job, settings, weights
from tests.support.forked import exit_code
from tests.support.peft_adapters import save_adapter
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
    with pytest.raises(JobError, match=r"--step 4: ftjob-\w+ has saved states after steps 3, 6, 9,"):
        export(job, tmp_path / "none", 4)
    with pytest.raises(JobError, match=r"ended already \(succeeded\)"):
        train(job, settings(one))


@pytest.mark.slow
def test_a_job_that_is_killed_three_times_has_the_losses_of_one_that_is_not(
    one: TinyModel, tmp_path: Path
) -> None:
    """Once in the middle of a backward pass, once while a saved state is written, once more in a pass."""
    killed, undisturbed = (new_job(tmp_path / name, steps=12, held_out=5) for name in ("killed", "whole"))
    for when, count in (("backward", 11), ("saved state", 3), ("backward", 17)):
        before = len(states_of(killed))
        arguments = (one.directory, killed.directory, when, count)
        assert exit_code(killed_trainer.train, *arguments) == -signal.SIGKILL
        if when == "saved state":
            assert list((killed.directory / "checkpoints").glob("*.partial"))
            assert len(states_of(killed)) >= before
    killed = Job(killed.directory)
    for job in (killed, undisturbed):
        train(job, settings(one))
    found, expected = killed.losses, undisturbed.losses
    assert [line["step"] for line in found] == [line["step"] for line in expected] == list(range(1, 13))
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in expected], rel=1e-5)
    for key, each in weights(killed).items():
        assert torch.allclose(each, weights(undisturbed)[key], atol=1e-5), key
    messages = [event["message"] for event in killed.events]
    assert len([message for message in messages if message.startswith("goes on after step")]) == 3
    assert messages[-1] == "succeeded"
    measured, wanted = (Job(job.directory).held_out_losses for job in (killed, undisturbed))
    assert len(measured) == 2
    assert measured == pytest.approx(wanted, rel=1e-5)


def states_of(job: Job) -> list[Path]:
    return [path for path in (job.directory / "checkpoints").glob("step-*") if path.suffix != ".partial"]


def test_a_loss_that_is_not_finite_fails_the_job_and_keeps_the_last_saved_state(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, install, num_installed = new_job(tmp_path, steps=9), LoraInTraining.install, 0

    def breaking(adapter: LoraInTraining, plans: tuple[LayerPlan, ...]) -> None:
        nonlocal num_installed
        num_installed += 1
        install(adapter, plans)
        if num_installed == 6:
            monkeypatch.setattr(PackRun, "loss", lambda pack, first, last: float("nan"))

    monkeypatch.setattr(LoraInTraining, "install", breaking)
    train(job, settings(one))
    fields = Job(job.directory).fields
    assert fields["status"] == "failed"
    assert fields["error"]["param"] == "learning_rate"
    assert len(job.losses) == 5
    assert len(weights(job)) == 2 * 3 * len(MODULES)


def test_submit_says_why_a_job_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "read all lines"}')
    settings = ("model.directory=bundled", "model.dtype=float32", f"finetuning.directory={tmp_path}")
    words = [word for each in settings for word in ("--set", each)]
    words += ["submit", str(tmp_path / "data.jsonl"), "--alone", "--steps", "1", "--batch-size", "1"]
    monkeypatch.setattr("sys.argv", ["finetune", *words])
    monkeypatch.setattr(PackRun, "loss", lambda pack, first, last: float("nan"))
    assert main() == 1
    assert "the loss of step 1 is nan: try a smaller learning rate" in capsys.readouterr().err


def test_a_gradient_that_is_not_finite_fails_the_job_and_changes_no_weight(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last step, after which there is no loss that would show it."""
    job, gradients, num_steps = new_job(tmp_path, steps=3, count=4), TrainedModel.gradients, 0

    def overflowing(model: TrainedModel) -> dict[str, torch.Tensor]:
        nonlocal num_steps
        num_steps += 1
        found = gradients(model)
        if num_steps == 3:
            next(iter(found.values())).view(-1)[0] = float("inf")
        return found

    monkeypatch.setattr(TrainedModel, "gradients", overflowing)
    train(job, settings(one))
    fields = Job(job.directory).fields
    assert (fields["status"], fields["error"]["param"]) == ("failed", "learning_rate")
    assert fields["error"]["message"].startswith("the gradient of step 3 has the norm inf")
    assert len(job.losses) == 2
    assert all(each.isfinite().all() for each in weights(job).values())
    assert not (job.directory / "adapter").exists()


def test_saved_states_at_the_end_of_each_pass_neither_wait_in_memory_nor_pile_up(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk stands still until the last step."""
    disk, save, most_waiting = threading.Event(), saved_states.save, 0
    job, writer = new_job(tmp_path, steps=15, count=4), ThreadPoolExecutor(1)

    def slow(*arguments: Any) -> None:
        disk.wait(60)
        save(*arguments)

    def watch(progress: Progress) -> None:
        nonlocal most_waiting
        most_waiting = max(most_waiting, writer._work_queue.qsize())
        if progress.step == 15:
            disk.set()

    monkeypatch.setattr(saved_states, "save", slow)
    adapter = LoraInTraining(load_trained_model(settings(one)), job.shape, 4)
    Trainer(job, adapter, PackMemory(adapter), Files(writer), watch).run()
    assert (Job(job.directory).status, most_waiting) == ("succeeded", 0)
    assert saved_states.steps(job.directory / "checkpoints") == [1, 15]
    found = saved_states.last(job.directory / "checkpoints")
    assert found is not None
    place, state = found
    for step in range(16, 31):
        save(job.directory / "checkpoints", replace(place, step=step), state)
    assert saved_states.steps(job.directory / "checkpoints") == list(range(19, 31))


def test_held_out_examples_are_measured_and_not_learned(one: TinyModel, tmp_path: Path) -> None:
    """Before the first step and after the last one. They are those of the one mini-batch here."""
    with_them, without = (new_job(tmp_path / f"{n}", steps=6, count=4, held_out=n) for n in (4, 0))
    for job in (with_them, without):
        train(job, settings(one))
    losses = [line["loss"] for line in without.losses]
    assert [line["loss"] for line in with_them.losses] == pytest.approx(losses, rel=1e-5)
    before, after = Job(with_them.directory).held_out_losses
    assert before == pytest.approx(losses[0], rel=1e-5)
    assert after < losses[-1]
    said = [event["message"] for event in with_them.events]
    measured = [f"the loss of the held-out examples is {loss:.4g}" for loss in (before, after)]
    assert said == ["started", *measured, "succeeded"]


def test_it_is_told_when_a_trained_adapter_can_be_served(one: TinyModel, tmp_path: Path) -> None:
    job, adapters, found = new_job(tmp_path, steps=1), tmp_path / "adapters", list[bool]()
    files = Files(AtOnce(), adapters, lambda: found.append((adapters / "tiny" / "1" / CONFIG).exists()))
    adapter = LoraInTraining(load_trained_model(settings(one)), job.shape, 4)
    Trainer(job, adapter, PackMemory(adapter), files).run()
    assert found == [True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_job_whose_process_is_ended_by_hand_any_number_of_times_goes_on(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Before its first saved state: no process has died of it."""
    job, forward, is_ended = new_job(tmp_path, steps=2), PackRun.forward, True

    def ended(pack: PackRun, tile: Tile) -> None:
        if is_ended:
            signal.raise_signal(number)
        forward(pack, tile)

    monkeypatch.setattr(PackRun, "forward", ended)
    if number is signal.SIGINT:  # which a background job of a shell ignores
        signal.signal(number, signal.default_int_handler)
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            train(Job(job.directory), settings(one))
    is_ended = False
    train(Job(job.directory), settings(one))
    assert Job(job.directory).status == "succeeded"
    assert [event["message"] for event in job.events].count("its process was ended") == 4


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_job_goes_on_from_an_adapter_of_peft(one: TinyModel, tmp_path: Path) -> None:
    """With its weights, and the scale of rsLoRA as an alpha of its own."""
    directory = save_adapter(one.model, tmp_path / "peft", rank=4)
    config = json.loads((directory / CONFIG).read_text()) | {"use_rslora": True, "lora_alpha": 6}
    (directory / CONFIG).write_text(json.dumps(config))
    found = read_beginning(settings(one), directory)
    assert (found.shape.rank, found.shape.scale, set(found.shape.modules)) == (4, 3.0, set(MODULES))
    job = new_job(tmp_path, steps=1, learning_rate=1e-9)
    options = job.options | {"from": str(directory), "alpha": found.shape.alpha}
    fields = job.fields | {"gapless": options}
    del fields["id"]
    job = create(tmp_path / "next", list(job.examples), fields, found.weights)
    train(job, settings(one))
    assert Job(job.directory).status == "succeeded"
    before, after = (load_file(path / WEIGHTS) for path in (directory, job.directory / "adapter"))
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[key], after[key], atol=1e-6) for key in before)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_adapter_with_older_names_is_trained_further_under_those_of_the_model(
    one: TinyModel, tmp_path: Path
) -> None:
    directory = save_adapter(one.model, tmp_path, rank=4)
    own, tensors = read_beginning(settings(one), directory).weights, load_file(directory / WEIGHTS)
    older = {key.replace(".model.layers.", ".language_model.model.layers."): tensors[key] for key in tensors}
    save_file(older, directory / WEIGHTS)
    assert not older.keys() & own.keys()
    assert read_beginning(settings(one), directory).weights.keys() == own.keys()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_adapter_that_can_not_be_trained_further_is_refused_with_the_reason(
    one: TinyModel, tmp_path: Path
) -> None:
    good = save_adapter(one.model, tmp_path / "good", rank=4)
    several = save_adapter(one.model, tmp_path / "several", rank=4, patterns=True)
    cut = tmp_path / "cut"
    shutil.copytree(good, cut)
    tensors = {key: each for key, each in load_file(good / WEIGHTS).items() if "layers.1.mlp" not in key}
    save_file(tensors, cut / WEIGHTS)
    for directory, says in (
        (several, "its modules differ"),
        (cut, "layers.1.mlp.*training adapts a module in all layers"),
        (tmp_path, "adapter_config.json"),
    ):
        with pytest.raises(BadAdapterError, match=says):
            read_beginning(settings(one), directory)


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
