"""What we train is what PEFT trains: gradients, losses over many steps, tokens of an export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from commands.finetune.alone import _new_adapter, train
from python_backends.finetuning.export import export
from python_backends.finetuning.jobs import JobError
from python_backends.finetuning.packs import mini_batch, packed
from python_backends.nouns.request import Ids
from python_backends.nouns.training import NO_LABEL, Pack
from tests.support import finetuning_jobs
from tests.support.finetuning_jobs import ALPHA, BATCH_SIZE, MODULES, RANK, SEED, examples, new_job, settings
from tests.support.model_source import facts_from
from tests.support.tiny_models import RELATIVES, TINY, WITH_EXPERTS, Serving, TinyModel, random_requests
from tests.support.training_reference import by_tiles, difference, random_pack, trained, transformed

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


def with_adapter(
    model: Any, shape: tuple[int, float, tuple[str, ...]], weights: Mapping[str, Tensor], dtype: torch.dtype
) -> tuple[Any, dict[str, Tensor]]:
    """PEFT's model around transformers', with the weights of an adapter; and these by key, to be trained.

    `shape`: rank, alpha and modules.
    """
    rank, alpha, modules = shape
    inputs_first = facts_from(model).family.inputs_first
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=list(modules), fan_in_fan_out=inputs_first
    )
    theirs = peft.get_peft_model(model, config, autocast_adapter_dtype=False).to(dtype).eval()
    parameters = {
        key.replace(".default", ""): each for key, each in theirs.named_parameters() if each.requires_grad
    }
    with torch.no_grad():
        for key, each in weights.items():
            parameters[key].copy_(each)
    return theirs, parameters


def peft_loss(theirs: Any, sequences: list[Pack]) -> float:
    """The mean over all labels of a mini-batch; its gradients are added up. Shorter sequences are padded at
    their ends, which no token before looks at.
    """
    tokens = padded([pack.tokens for pack in sequences], 0)
    labels = padded([pack.labels for pack in sequences], NO_LABEL)
    logits = theirs(input_ids=tokens).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=NO_LABEL)
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def padded(rows: list[Ids], value: int) -> Tensor:
    tensors = [torch.from_numpy(row.astype(np.int64)) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def sequences_of(pack: Pack) -> list[Pack]:
    bounds = zip(pack.bounds, pack.bounds[1:], strict=False)
    return [Pack(pack.tokens[begin:end], pack.labels[begin:end], (0, end - begin)) for begin, end in bounds]


@pytest.mark.parametrize("name", sorted((TINY | RELATIVES).keys() - WITH_EXPERTS))
def test_gradients_of_every_family_are_pefts(name: str) -> None:
    """In float64, but transformers rounds norms and rotations to float32; PEFT pads sequences of a batch."""
    pack = random_pack((23, 9, 20))
    model, adapter = trained(name, torch.float64)
    loss, found = by_tiles(model, adapter, pack, (9, 4))
    shape = (adapter.shape.rank, adapter.shape.alpha, adapter.shape.modules)
    theirs, parameters = with_adapter(transformed(name, torch.float64), shape, adapter.weights, torch.float64)
    their_loss = peft_loss(theirs, sequences_of(pack))
    assert abs(loss - their_loss) <= 1e-5 * their_loss
    expected = {key: each.grad for key, each in parameters.items() if each.grad is not None}
    assert difference(found, expected) <= 1e-5


@pytest.mark.slow
def test_losses_of_200_steps_are_pefts(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    """Within 1e-3, or three times what PEFT itself differs between float32 and float64."""
    one, job = tiny("llama_grouped"), new_job(tmp_path, steps=200)
    start = {key: torch.from_numpy(each) for key, each in _new_adapter(job, settings(one)).weights.items()}
    train(job, settings(one))
    found = np.array([line["loss"] for line in job.losses])
    double = _peft_losses(one, start, torch.float64)
    if (apart := np.abs(found - double).max()) > 1e-3:
        drift = float(np.abs(_peft_losses(one, start, torch.float32) - double).max())
        assert apart <= 3 * drift
    assert double[-1] < double[0] - 0.5


def _peft_losses(one: TinyModel, start: Mapping[str, Tensor], dtype: torch.dtype) -> Any:
    model = type(one.model).from_pretrained(one.directory).to(dtype)
    theirs, parameters = with_adapter(model, (RANK, ALPHA, MODULES), start, dtype)
    optimiser = torch.optim.AdamW(parameters.values(), lr=1e-3, weight_decay=0.0)
    data, losses = examples(10), []
    for step in range(200):
        chosen = [packed([data[i]]) for i in mini_batch(len(data), BATCH_SIZE, SEED, step)]
        losses.append(peft_loss(theirs, chosen))
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    return np.array(losses)


def test_peft_finds_the_loss_of_the_trainers_next_step_in_an_export(one: TinyModel, tmp_path: Path) -> None:
    shorter, longer = (new_job(tmp_path, steps=steps, learning_rate=5e-3) for steps in (20, 21))
    for job in (shorter, longer):
        train(job, settings(one))
    assert export(shorter, tmp_path / "adapter") == 20
    with pytest.raises(JobError, match="exists already"):
        export(shorter, tmp_path / "adapter")
    base = type(one.model).from_pretrained(one.directory)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True).eval()
    chosen = [packed([examples(10)[i]]) for i in mini_batch(10, BATCH_SIZE, SEED, 20)]
    assert peft_loss(theirs, chosen) == pytest.approx(longer.losses[-1]["loss"], rel=1e-4)


@pytest.mark.parametrize("name", ["llama_grouped", "phi3", "gpt_neox", "glm", "gemma2"])
def test_peft_gives_the_tokens_of_an_export_that_we_serve_merged(
    name: str, tiny: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    """PEFT reads the export beside the frozen weights; our engine serves weights with the product added.
    Fused modules, rows by head and rows of neighbours as well.
    """
    one = tiny(name)
    modules = [part.name for parts in trained(name, torch.float32)[0].modules.values() for part in parts]
    job = new_job(tmp_path, steps=10, learning_rate=1e-2, modules=modules)
    train(job, settings(one))
    export(job, tmp_path / "adapter")
    base = type(one.model).from_pretrained(one.directory)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    theirs.generation_config.pad_token_id = 0
    merged = _merged(one, finetuning_jobs.weights(job), tmp_path / "merged")
    reference = TinyModel(merged, theirs, one.agreement)
    requests = random_requests(3, seed=8)
    answers = Serving(reference.engine()).run(requests)
    for request in requests:
        reference.check(request, answers[request.request_id])
    assert all(
        answers[each.request_id] != one.reference(each.prompt, each.sampling.max_tokens) for each in requests
    )


@torch.no_grad()
def _merged(one: TinyModel, weights: Mapping[str, Tensor], directory: Path) -> Path:
    """A checkpoint whose weights are W + alpha / rank · B·A."""
    model = type(one.model).from_pretrained(one.directory)
    parameters = dict(model.named_parameters())
    for key, a in weights.items():
        if ".lora_A." in key:
            name = key.removeprefix("base_model.model.").replace(".lora_A", "")
            parameters[name] += ALPHA / RANK * weights[key.replace(".lora_A.", ".lora_B.")] @ a
    model.save_pretrained(directory)
    return directory
