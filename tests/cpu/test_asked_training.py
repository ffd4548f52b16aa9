"""A job that a caller leads computes what one with a file does, and ends with its caller."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from commands.finetune.alone import AtOnce, train
from python_backends.engine.adapter_directory import WEIGHTS
from python_backends.engine.torch.training.lora_in_training import LoraInTraining
from python_backends.engine.torch.training.model import TrainedModel, load_trained_model
from python_backends.finetuning import ask_files, saved_states
from python_backends.finetuning.asked_trainer import LOST, AskedTrainer
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.jobs import Job, create
from python_backends.finetuning.pack_memory import PackMemory
from python_backends.finetuning.packs import mini_batch
from python_backends.finetuning.trainer import CLIP, Files, Progress
from python_backends.nouns import asks
from tests.support.finetuning_jobs import BATCH_SIZE, SEED, examples, new_job, settings, weights
from tests.support.tiny_models import TinyModel

RATE = 1e-2
ADAM = asks.Step(RATE, (0.9, 0.999), 1e-8, 0.0, CLIP)


class Led:
    """A job, and the trainer that answers what it is asked."""

    def __init__(self, model: TrainedModel, directory: Path) -> None:
        fields = new_job(directory / "other", steps=1).fields
        options = fields.pop("gapless") | {"asked": True}
        del fields["id"]
        self.job = create(directory, None, {**fields, "gapless": options})
        self.adapters, self.seen, self._number = directory / "adapters", list[Progress](), 0
        adapter = LoraInTraining(model, self.job.shape, SEED)
        files = Files(AtOnce(), self.adapters)
        self.trainer = AskedTrainer(self.job, adapter, PackMemory(adapter), files, self.seen.append)
        self.trainer.begin()
        self.tile_tokens = adapter.tile_tokens

    def __call__(self, ask: asks.Ask) -> Any:
        self._number += 1
        ask_files.write_ask(self.job.directory, self._number, ask)
        while (answer := ask_files.read_answer(self.job.directory, self._number)) is None:
            self.trainer.do(self.tile_tokens)
        return answer

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        name, _, number = self(asks.Publish("")).adapter.partition("@")
        return load_file(self.adapters / name / number / WEIGHTS)


@pytest.fixture
def model(one: TinyModel) -> TrainedModel:
    return load_trained_model(settings(one))


@pytest.fixture
def led(model: TrainedModel, tmp_path: Path) -> Led:
    return Led(model, tmp_path)


def learn(
    given: list[Example], each: float = 1.0, drawn: NDArray[np.float32] | None = None, learns: bool = True
) -> asks.Learn:
    """Every token has a label, as a caller gives them, and those that are learned weigh `each`."""
    ids = [example.ids for example in given]
    marks = [np.append(example.learned[1:], False) for example in given]
    return asks.Learn(
        [len(each) for each in ids],
        np.concatenate(ids).tobytes(),
        np.concatenate([np.append(each[1:], 0).astype(np.int32) for each in ids]).tobytes(),
        (each * np.concatenate(marks)).astype(np.float32).tobytes(),
        asks.NONE if drawn is None else drawn.tobytes(),
        learns,
    )


def log_probs(answer: asks.Learned) -> NDArray[np.float32]:
    return np.frombuffer(answer.log_probs, np.float32)


def test_its_steps_are_those_of_a_job_with_a_file(one: TinyModel, led: Led, tmp_path: Path) -> None:
    """To rounding: the gradients of the first step, and what five steps make of it."""
    steps, data = 5, examples(10)
    job = new_job(tmp_path, steps, RATE)
    train(job, settings(one))
    losses = []
    for step in range(steps):
        chosen = [data[int(index)] for index in mini_batch(len(data), BATCH_SIZE, SEED, step)]
        count = sum(example.num_learned for example in chosen)
        losses.append(led(learn(chosen, 1 / count)).loss)
        norm, tolerance = led(ADAM).norm, 1e-3 if step else 1e-5
        assert norm == pytest.approx(job.losses[step]["grad_norm"], rel=tolerance)
    assert losses == pytest.approx([line["loss"] for line in job.losses], rel=1e-3)
    assert losses[0] == pytest.approx(job.losses[0]["loss"], rel=1e-6)
    found, wanted = led.weights, weights(job)
    assert found.keys() == wanted.keys()
    apart = torch.cat([(found[key] - each).abs().flatten() for key, each in wanted.items()])
    assert (apart > RATE / 50).float().mean() < 1e-3, "rounding decides single numbers"
    assert [progress.step for progress in led.seen] == [1, 2, 3, 4, 5]


def test_its_gradients_are_those_of_a_job_with_a_file(
    one: TinyModel, led: Led, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, gradients, data = list[dict[str, torch.Tensor]](), TrainedModel.gradients, examples(4)

    def noted(model: TrainedModel) -> dict[str, torch.Tensor]:
        found = gradients(model)
        seen.append({key: each.clone() for key, each in found.items()})  # they are clipped in place
        return found

    monkeypatch.setattr(TrainedModel, "gradients", noted)
    train(new_job(tmp_path, steps=1, count=4), settings(one))
    led(learn(data, 1 / sum(example.num_learned for example in data)))
    wanted, found = seen
    assert found.keys() == wanted.keys()
    largest = max(float(each.abs().max()) for each in wanted.values())
    assert largest > 0
    for key, each in wanted.items():
        assert torch.allclose(found[key], each, atol=1e-6 * largest, rtol=1e-4), key


def test_gradients_are_added_until_a_step(model: TrainedModel, tmp_path: Path) -> None:
    """Another job trains in between; a pass forward has no gradients."""
    parts, whole, other = (Led(model, tmp_path / name) for name in ("parts", "whole", "other"))
    data = examples(6)
    assert "no gradients" in parts(ADAM).error
    for first in (0, 2, 4):
        parts(learn(data[first : first + 2]))
        other(learn(data[:1]))
        parts(learn(data[:3], learns=False))
    assert other(ADAM).norm > 0
    loss = whole(learn(data)).loss
    assert parts(ADAM).norm == pytest.approx(whole(ADAM).norm, rel=1e-5)
    for key, each in whole.weights.items():
        assert torch.allclose(parts.weights[key], each, atol=1e-5), key
    assert whole(learn(data, learns=False)).loss < loss


def test_a_step_counts_what_was_learned_for_it(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what was computed forward alone, nor what was dropped; its loss is that of all mini-batches."""
    data, gradients = examples(6), TrainedModel.gradients

    def overflowing(model: TrainedModel) -> dict[str, torch.Tensor]:
        return {key: each * float("inf") for key, each in gradients(model).items()}

    with monkeypatch.context() as patched:
        patched.setattr(TrainedModel, "gradients", overflowing)
        led(learn(data[:3]))
    assert "were dropped" in led(ADAM).error
    loss = 0.0
    for first in (0, 2, 4):
        led(learn(data[first : first + 2], learns=False))
        loss += led(learn(data[first : first + 2])).loss
    led(ADAM)
    (progress,) = led.seen
    (line,) = led.job.losses
    count = sum(len(example.ids) for example in data)
    assert (progress.tokens, line["tokens"]) == (count, count)
    assert progress.loss == line["loss"] == pytest.approx(loss / count)
    led.job.cancel()
    while led.trainer.piece.kind != "end":
        led.trainer.do(7)
    assert Job(led.job.directory).fields["trained_tokens"] == count


def test_each_label_has_its_log_probability(led: Led) -> None:
    """Before and after a step, with a backward pass and without; the loss is their weighted sum."""
    data = examples(5)
    marks = np.concatenate([np.append(example.learned[1:], False) for example in data])
    for _ in range(2):
        forward, both = led(learn(data, 0.5, learns=False)), led(learn(data, 0.5))
        found = log_probs(forward)
        assert len(found) == sum(forward.lengths) == len(marks)
        assert (found < 0).all()
        assert np.allclose(found, log_probs(both), atol=1e-6)
        assert forward.loss == pytest.approx(-0.5 * found[marks].sum(), rel=1e-5)
        led(ADAM)


def test_importance_sampling_weighs_by_how_much_more_probable_a_token_is_now(led: Led) -> None:
    data = examples(5)
    own = log_probs(led(learn(data, learns=False)))
    entropy_norm = led(learn(data)) and led(asks.Step(0.0, (0.9, 0.999), 1e-8, 0.0, 0.0)).norm
    advantages = 3.0 * sum(example.num_learned for example in data)
    for shift in (0.0, np.log(2.0)):
        answer = led(learn(data, 3.0, (own - shift).astype(np.float32)))
        assert answer.loss == pytest.approx(-advantages * np.exp(shift), rel=1e-4)
        norm = led(asks.Step(0.0, (0.9, 0.999), 1e-8, 0.0, 0.0)).norm
        assert norm == pytest.approx(entropy_norm * 3 * np.exp(shift), rel=1e-4)


def test_each_step_has_its_own_parameters(led: Led) -> None:
    """The first step of Adam moves each weight by the rate, whatever the gradient; decay shrinks it."""
    data, before = examples(4), led.weights
    led(learn(data))
    led(asks.Step(1e-3, (0.5, 0.6), 1e-30, 0.0, 0.0))
    after = led.weights
    changed = torch.cat([(after[key] - each).abs().flatten() for key, each in before.items()])
    assert torch.allclose(changed[changed > 0], torch.tensor(1e-3), rtol=1e-2)
    led(learn(data))
    led(asks.Step(1e-30, (0.5, 0.6), 1e-8, 0.5e30, 0.0))
    for key, each in led.weights.items():
        assert torch.allclose(each, after[key] / 2, rtol=1e-5), key


def test_another_model_goes_on_from_a_saved_state_as_the_first_one_does(
    model: TrainedModel, tmp_path: Path
) -> None:
    """With the optimiser's moments the same numbers; without them it steps as one that begins."""
    first, data = Led(model, tmp_path), examples(4)
    step = asks.Step(RATE, (0.9, 0.999), 1e-30, 0.0, 0.0)
    for _ in range(2):
        first(learn(data))
        first(step)
    assert first(asks.SaveState("law")) == asks.Saved("law")
    saved = first.weights
    first(learn(data))
    first(step)
    goes_on, begins = Led(model, tmp_path), Led(model, tmp_path)
    for other in (goes_on, begins):
        other(learn(data[:1]))
        other(step)
        other(learn(data[:1]))
        assert other(asks.LoadState(first.job.id, "law", other is goes_on)) == asks.Loaded()
        assert all(torch.equal(each, saved[key]) for key, each in other.weights.items())
        assert "no gradients" in other(step).error, "those of other weights are dropped"
        other(learn(data))
        other(step)
    wanted = first.weights
    assert all(torch.equal(each, wanted[key]) for key, each in goes_on.weights.items())
    moved = torch.cat([(each - saved[key]).abs().flatten() for key, each in begins.weights.items()])
    assert torch.allclose(moved[moved > 0], torch.tensor(RATE), rtol=1e-2), "the first step of Adam"
    assert goes_on(asks.SaveState("again")) == asks.Saved("again")
    place, _ = saved_states.read_named(goes_on.job.directory / "states", "again")
    assert place.step == 3, "what the moments know"


def test_a_state_that_can_not_be_loaded_says_why_and_changes_nothing(
    model: TrainedModel, led: Led, tmp_path: Path
) -> None:
    other = Led(model, tmp_path)
    assert led(asks.SaveState("law")) == asks.Saved("law")
    before = other.weights
    directory = led.job.directory / "states" / "law"
    assert f"{led.job.id} has saved no state poem" in other(asks.LoadState(led.job.id, "poem", False)).error
    weights = load_file(directory / "state.safetensors")
    save_file({key: each[:1] for key, each in weights.items()}, directory / "state.safetensors")
    assert "the state is another adapter's" in other(asks.LoadState(led.job.id, "law", False)).error
    (directory / "state.safetensors").write_bytes(b"nonsense")
    assert "can't be read" in other(asks.LoadState(led.job.id, "law", False)).error
    assert all(torch.equal(each, before[key]) for key, each in other.weights.items())
    other(learn(examples(2)))
    assert other(ADAM).norm > 0


def test_gradients_that_are_not_finite_are_dropped_and_the_job_goes_on(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, gradients, before = examples(4), TrainedModel.gradients, led.weights

    def overflowing(model: TrainedModel) -> dict[str, torch.Tensor]:
        return {key: each * float("inf") for key, each in gradients(model).items()}

    with monkeypatch.context() as patched:
        patched.setattr(TrainedModel, "gradients", overflowing)
        led(learn(data))
    assert "were dropped" in led(ADAM).error
    assert all(torch.equal(each, before[key]) for key, each in led.weights.items())
    led(learn(data))
    assert led(ADAM).norm > 0


def test_adapters_without_a_name_end_with_the_job_and_others_stay(led: Led) -> None:
    assert led(asks.Publish("law")).adapter == "law@1"
    for number in range(1, 11):
        assert led(asks.Publish("")).adapter == f"{led.job.id}@{number}"
    assert len(list((led.adapters / led.job.id).iterdir())) == 8
    led(learn(examples(2)))
    led(ADAM)
    assert led(asks.Publish("law")).adapter == "law@2"
    led.job.cancel()
    while led.trainer.piece.kind != "end":
        led.trainer.do(7)
    assert sorted(path.name for path in led.adapters.iterdir()) == ["law"]
    assert Job(led.job.directory).adapters == {"law@1", "law@2"}, "what may be removed by its name"
    assert not (led.job.directory / ask_files.ASKS).exists()
    assert Job(led.job.directory).status == "cancelled"


def test_an_ask_that_was_refused_before_does_not_keep_others_waiting(led: Led) -> None:
    assert led(asks.Nothing()) == asks.Nothing()
    assert led(learn(examples(2))).loss > 0


def test_a_job_whose_caller_is_gone_ends(led: Led) -> None:
    led.trainer.do(7)
    assert led.trainer.piece.kind == "wait"
    os.utime(led.job.directory / ask_files.ASKS, (1, 1))
    ask_files.show_life(led.job.directory)
    led.trainer.do(7)
    assert led.trainer.piece.kind == "wait"
    os.utime(led.job.directory / ask_files.ASKS, (1, 1))
    led.trainer.do(7)
    assert led.trainer.piece.kind == "end"
    assert Job(led.job.directory).status == "cancelled"


def test_a_job_whose_instance_has_died_fails(led: Led, model: TrainedModel) -> None:
    led(asks.Publish(""))
    job = Job(led.job.directory)
    adapter = LoraInTraining(model, job.shape, SEED)
    after = AskedTrainer(job, adapter, PackMemory(adapter), Files(AtOnce(), led.adapters), led.seen.append)
    after.begin()
    assert after.piece.kind == "end"
    assert Job(job.directory).fields["error"]["message"] == LOST
    assert not (led.adapters / job.id).exists()
