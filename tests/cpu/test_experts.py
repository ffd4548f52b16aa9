"""Mixtures of experts: in which ways files may have them, which weights are read, what is done with adapters
and refused of training. Their tokens are compared with transformers' where those of every family are.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from commands.finetune.beginning import targets
from python_backends.engine.model.description import Linear
from python_backends.engine.model.quantised import quantise
from python_backends.engine.protocol import BadAdapterError
from python_backends.engine.torch import experts
from python_backends.engine.torch.engine import TorchEngine
from python_backends.engine.torch.experts import ExpertProducts
from python_backends.engine.torch.training.model import load_trained_model
from python_backends.instance import build
from python_backends.settings import ModelSettings, Settings, SettingsError
from tests.support.peft_adapters import save_adapter
from tests.support.quantised_checkpoints import SCHEMES, write
from tests.support.tiny_models import WITH_EXPERTS, Serving, TinyModel, random_requests

FILE = "model.safetensors"
Weights = dict[str, Tensor]


def fused(model: TinyModel) -> Weights:
    """As transformers computes with them."""
    return {name: each.contiguous() for name, each in model.model.state_dict().items()}


def stacked(model: TinyModel) -> Weights:
    """gate, up and down of all experts, as GGUF has them."""
    weights = fused(model)
    for name in [name for name in weights if ".experts." in name]:
        stack = weights.pop(name)
        parts = stack.chunk(2, 1) if name.endswith("gate_up_proj") else [stack]
        names = ["gate_proj", "up_proj"] if len(parts) == 2 else ["down_proj"]
        for part, each in zip(names, parts, strict=True):
            weights[f"{name.rpartition('.')[0]}.{part}.weight"] = each.contiguous()
    return weights


@pytest.mark.parametrize("name", sorted(WITH_EXPERTS))
@pytest.mark.parametrize("spelled", [fused, stacked])
def test_files_that_have_all_experts_in_one_tensor_are_served_alike(
    tiny: Callable[[str], TinyModel], tmp_path: Path, name: str, spelled: Callable[[TinyModel], Weights]
) -> None:
    """transformers itself writes, and `tiny` has, a tensor for each expert."""
    model = tiny(name)
    assert any(".experts.7." in key for key in load_file(model.directory / FILE))
    settings = changed(model, tmp_path, lambda path: save_file(spelled(model), path / FILE))
    requests = random_requests(3)
    model.check_all(requests, Serving(TorchEngine(settings)).run(requests))


def test_what_is_there_in_two_ways_has_no_place(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    model = tiny("mixtral")
    both = load_file(model.directory / FILE) | fused(model)
    settings = changed(model, tmp_path, lambda path: save_file(both, path / FILE))
    with pytest.raises(SettingsError, match=r"no place for model\.layers\.0\.block_sparse_moe\.") as refused:
        TorchEngine(settings)
    assert "\n" not in str(refused.value)


def test_other_spellings_of_the_number_of_experts_are_read(
    tiny: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    for name, spelling in (("mixtral", "num_experts"), ("qwen3_moe", "num_experts")):
        model = tiny(name)

        def respell(path: Path, spelling: str = spelling) -> None:
            config = json.loads((path / "config.json").read_text())
            config[spelling] = config.pop("num_local_experts")
            (path / "config.json").write_text(json.dumps(config))

        requests = random_requests(2)
        settings = changed(model, tmp_path / name, respell)
        model.check_all(requests, Serving(TorchEngine(settings)).run(requests))


@pytest.mark.parametrize("scheme", ["AWQ", "int4 in words", "blocks as DeepSeek has them"])
def test_quantised_experts_are_served_as_what_they_mean(
    tiny: Callable[[str], TinyModel], tmp_path: Path, scheme: str
) -> None:
    model, quantised, plain = tiny("qwen3_moe"), tmp_path / "quantised", tmp_path / "plain"
    write(SCHEMES[scheme], model.directory, quantised, plain)
    reference = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    requests = random_requests(3)
    answers = Serving(TinyModel(quantised, None, model.agreement).engine()).run(requests)
    TinyModel(plain, reference, model.agreement).check_all(requests, answers)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("counts", [(0, 1, 0, 2), (5, 0, 30, 1), (0, 0, 0, 0), (0, 0, 0, 3)])
@torch.inference_mode()
def test_each_row_is_multiplied_with_the_weight_of_its_expert(counts: tuple[int, ...], int8: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    linear = Linear(torch.randn((4, 24, 16), generator=generator), None)
    if int8:
        linear = quantise(linear)
        assert linear.scale is not None
    weights = linear.weight if linear.scale is None else linear.weight * linear.scale[..., None]
    x = torch.randn((sum(counts), 16), generator=generator)
    y = ExpertProducts(linear).forward(x, torch.tensor(counts).cumsum(0))
    expected = [
        functional.linear(rows, weight) for rows, weight in zip(x.split(counts), weights, strict=True)
    ]
    torch.testing.assert_close(y, torch.cat(expected))


def test_weights_of_experts_that_no_row_chose_are_not_read(
    tiny: Callable[[str], TinyModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode step of one row reads as many as a token has, in each of both products."""
    read: list[Tensor] = []

    def watched(linear: Linear, kernels: bool) -> Any:
        made = projection_of(linear, kernels)
        forward = made.forward

        def seen(x: Tensor) -> Tensor:
            read.append(linear.weight)
            return forward(x)

        made.forward = seen  # type: ignore[method-assign]
        return made

    projection_of = experts.projection_of
    monkeypatch.setattr(experts, "projection_of", watched)
    model = tiny("olmoe")
    serving = Serving(model.engine(), ahead=0)
    serving.submit(random_requests(1, max_tokens=30)[0])
    while not serving.answers[0]:
        serving.step()
    read.clear()
    serving.step()
    config = model.model.config
    assert len(read) == config.num_hidden_layers * (2 * config.num_experts_per_tok + 1)


def test_training_is_refused_by_name(tiny: Callable[[str], TinyModel]) -> None:
    settings = tiny("qwen3_moe").settings()
    assert not tiny("qwen3_moe").engine().can_train
    with pytest.raises(ValueError, match="Qwen3MoeForCausalLM: mixtures of experts are not trained"):
        targets(settings, "q_proj")
    with pytest.raises(SettingsError, match="mixtures of experts are not trained"):
        load_trained_model(settings)
    assert build._refusal(settings) == (
        f"model.directory = '{settings.model.directory}': mixtures of experts are not trained"
    )


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT
def test_an_adapter_of_experts_is_refused_by_the_name_of_its_tensor(
    tiny: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    model = tiny("qwen3_moe")
    directory = save_adapter(model.model, tmp_path / "law", rank=2)
    tensors = load_file(directory / "adapter_model.safetensors")
    name = "base_model.model.model.layers.0.mlp.experts.3.gate_proj.lora_A.weight"
    save_file({**tensors, name: torch.ones(2, 64)}, directory / "adapter_model.safetensors")
    with pytest.raises(BadAdapterError, match=r"experts\.3\.gate_proj\.lora_A\.weight"):
        model.engine().read_adapter(directory, tmp_path)


def changed(model: TinyModel, directory: Path, change: Callable[[Path], object]) -> Settings:
    shutil.copytree(model.directory, directory, dirs_exist_ok=True)
    change(directory)
    return replace(model.settings(), model=ModelSettings(str(directory), "float32"))
