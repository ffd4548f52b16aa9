"""A job is trained as PEFT would train it, survives being killed, and PEFT reads what it exports."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backends.finetuning import checkpoints, jobs
from python_backends.finetuning.alone import _session, train
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.export import export
from python_backends.finetuning.jobs import Job, JobError
from python_backends.finetuning.packs import mini_batch, packed
from python_backends.finetuning.pruning import plans
from python_backends.nouns.training import NO_LABEL, Keep, Pack
from python_backends.settings import ROOT, EngineSettings, FinetuningSettings, ModelSettings, Settings
from tests.cpu.tiny_models import VOCABULARY, TinyModel

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def examples(count: int) -> list[Example]:
    """Of unequal lengths; the second half of each is learned."""
    generator = np.random.default_rng(2)
    lengths = generator.integers(6, 24, count)
    return [
        Example(generator.integers(0, VOCABULARY, length).astype(np.int32), np.arange(length) >= length // 2)
        for length in lengths
    ]


def new_job(directory: Path, steps: int, learning_rate: float = 1e-3, count: int = 10) -> Job:
    fields = {
        "model": "tiny",
        "hyperparameters": {"n_epochs": 1, "batch_size": 4, "learning_rate_multiplier": 5.0},
        "seed": 4,
        "gapless": {
            "suffix": "tiny",
            "rank": 4,
            "alpha": 8.0,
            "targets": MODULES,
            "learning_rate": learning_rate,
            "steps": steps,
        },
    }
    return jobs.create(directory, examples(count), fields)


def settings(tiny: TinyModel) -> Settings:
    return Settings(
        model=ModelSettings(directory=str(tiny.directory), dtype="float32"),
        engine=EngineSettings(threads=1),
        finetuning=FinetuningSettings(pack_tokens=48),
    )


def weights(job: Job) -> dict[str, Any]:
    found = checkpoints.last(job.directory / "checkpoints")
    assert found is not None
    return {key: torch.from_numpy(each) for key, each in found[1].items() if key.endswith(".weight")}


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
    with pytest.raises(JobError, match="it has succeeded already"):
        train(job, settings(one))


def test_a_job_that_is_killed_three_times_has_the_losses_of_one_that_is_not(
    one: TinyModel, tmp_path: Path
) -> None:
    """Once in the middle of a backward pass, once while a checkpoint is written, once more in a pass."""
    killed, undisturbed = new_job(tmp_path / "killed", steps=12), new_job(tmp_path / "whole", steps=12)
    for when, count in (("tile", 11), ("checkpoint", 3), ("tile", 17)):
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
    words = ("-m", "tests.cpu.killed_trainer", tiny.directory, job.directory, when, count)
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, check=False, timeout=120, capture_output=True).returncode


def test_a_loss_that_is_not_finite_fails_the_job_and_keeps_the_last_checkpoint(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from python_backends.engine.torch.training.session import TrainingSession

    job, window = new_job(tmp_path, steps=9), TrainingSession.window

    def broken(session: TrainingSession, first: int, last: int) -> float:
        return float("nan") if session.num_steps == 5 else window(session, first, last)

    monkeypatch.setattr(TrainingSession, "window", broken)
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
    with pytest.raises(JobError, match="has cancelled already"):
        other.cancel()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_losses_of_200_steps_are_pefts(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    """Within 1e-3, or three times what PEFT itself differs between float32 and float64."""
    pytest.importorskip("peft")
    one, job = tiny("llama_grouped"), new_job(tmp_path, steps=200)
    first = new_job(tmp_path, steps=200)  # only for its weights before the first step
    start = _start(first, settings(one))
    train(job, settings(one))
    found = np.array([line["loss"] for line in job.losses])
    single, double = (_peft_losses(one, start, dtype) for dtype in (torch.float32, torch.float64))
    drift = float(np.abs(single - double).max())
    assert np.abs(found - double).max() <= max(1e-3, 3 * drift), drift
    assert double[-1] < double[0] - 0.5


def _start(job: Job, settings: Settings) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(each) for key, each in _session(job, settings).weights.items()}


def _peft_losses(one: TinyModel, start: dict[str, torch.Tensor], dtype: torch.dtype) -> Any:
    import peft

    model = type(one.model).from_pretrained(one.directory).to(dtype)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=MODULES)
    theirs = peft.get_peft_model(model, config, autocast_adapter_dtype=False).to(dtype).eval()
    parameters = {
        key.replace(".default", ""): each for key, each in theirs.named_parameters() if each.requires_grad
    }
    with torch.no_grad():
        for key, each in start.items():
            parameters[key].copy_(each)
    optimiser = torch.optim.AdamW(parameters.values(), lr=1e-3, weight_decay=0.0)
    data, losses = examples(10), []
    for step in range(200):
        chosen = [packed([data[i]]) for i in mini_batch(len(data), 4, 4, step)]
        num_labels, total = sum(pack.num_labels for pack in chosen), 0.0
        for pack in chosen:
            tokens, labels = (torch.from_numpy(each.astype(np.int64)) for each in (pack.tokens, pack.labels))
            logits = theirs(input_ids=tokens[None]).logits[0]
            part = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / num_labels
            part.backward()  # type: ignore[no-untyped-call]
            total += float(part.detach())
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(total)
    return np.array(losses)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_peft_reads_an_export_and_has_the_trainers_losses_and_tokens(one: TinyModel, tmp_path: Path) -> None:
    """The loss of the next step, computed by PEFT, is the one that the trainer finds: the same adapter."""
    peft = pytest.importorskip("peft")
    job, longer = (
        new_job(tmp_path, steps=20, learning_rate=5e-3),
        new_job(tmp_path, steps=21, learning_rate=5e-3),
    )
    train(job, settings(one))
    train(longer, settings(one))
    assert export(job, tmp_path / "adapter") == 20
    with pytest.raises(JobError, match="exists already"):
        export(job, tmp_path / "adapter")
    base = type(one.model).from_pretrained(one.directory)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    chosen = [packed([examples(10)[i]]) for i in mini_batch(10, 4, 4, 20)]
    total = 0.0
    for pack in chosen:
        tokens, labels = (torch.from_numpy(each.astype(np.int64)) for each in (pack.tokens, pack.labels))
        with torch.no_grad():
            logits = theirs(input_ids=tokens[None]).logits[0]
        total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
    assert total / sum(pack.num_labels for pack in chosen) == pytest.approx(
        longer.losses[-1]["loss"], rel=1e-4
    )
    prompt = torch.arange(3, 15)
    theirs.generation_config.pad_token_id = 0
    answer = theirs.generate(
        input_ids=prompt[None],
        attention_mask=torch.ones_like(prompt)[None],
        max_new_tokens=24,
        do_sample=False,
    )
    assert _greedy(job, settings(one), prompt.tolist(), 24) == answer[0, len(prompt) :].tolist()


@torch.no_grad()
def _greedy(job: Job, settings: Settings, tokens: list[int], count: int) -> list[int]:
    """Of our own operators with the adapter of the last checkpoint, all tokens computed each time."""
    session = _session(job, settings)
    found = checkpoints.last(job.directory / "checkpoints")
    assert found is not None
    session.resume(found[1], found[0].step)
    session.install(plans(session.facts, session.targets, Keep.PRODUCTS))
    model, length = session._model, len(tokens)
    for _ in range(count):
        ids = np.array(tokens, np.int32)
        model.begin(Pack(ids, np.full_like(ids, NO_LABEL), (0, len(ids))), 1)
        run = model._run
        x = model.decoder.residual(run.batcher.batch(run.plan(0, len(ids))), run.cache)[len(ids) - 1 :][:1]
        tokens = [*tokens, int(model.decoder.head.forward(model.decoder.norm.of(x)).argmax())]
    return tokens[length:]
