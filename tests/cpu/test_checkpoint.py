"""Which checkpoints are loaded, how they are refused, and what the engine says it can take."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from python_backends.engine.kv.padding import padded
from python_backends.engine.model import checkpoint, straight
from python_backends.engine.model.checkpoint import fingerprint_of, load_model, model_limits, read_config
from python_backends.engine.model.straight import load_straight
from python_backends.engine.torch.engine import TorchEngine
from python_backends.settings import EngineSettings, ModelSettings, Settings, SettingsError
from tests.support.tiny_models import RELATIVES, TINY, Serving, TinyModel, random_requests

# transformers calls a module by another name than its checkpoints
CONVERTED = ("gpt_neox", "gpt_neox_sequential")


def test_a_checkpoint_in_many_files_gives_the_same_answers(one: TinyModel, tmp_path: Path) -> None:
    one.model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    settings = Settings(
        model=ModelSettings(directory=str(tmp_path), dtype="float32"), engine=EngineSettings(threads=1)
    )
    requests = random_requests(4)
    answers = Serving(TorchEngine(settings)).run(requests)
    one.check_all(requests, answers)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "GPT2LMHeadModel"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        (
            {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type proportional",
        ),
        ({"hidden_act": "quick_gelu"}, "hidden_act quick_gelu"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "quantization_config of architecture LlamaForCausalLM",
        ),
        ({"model_type": "unheard_of"}, "unheard_of"),
        ({"hidden_size": 65}, "hidden size"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    one: TinyModel, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    settings = _changed(one, tmp_path, change)
    with pytest.raises(SettingsError, match=named):
        TorchEngine(settings)


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        (
            "qwen2",
            {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
            "layer type linear_attention",
        ),
        (
            "gemma3",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention of architecture Gemma3ForCausalLM",
        ),
        ("phi", {"qk_layernorm": True}, "qk_layernorm"),
    ],
)
def test_what_one_family_alone_may_ask_for_is_refused_by_name(
    tiny: Any, tmp_path: Path, name: str, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        TorchEngine(_changed(tiny(name), tmp_path, change))


@pytest.mark.parametrize("name", sorted(TINY | RELATIVES))
def test_weights_that_are_read_straight_to_a_device_are_those_that_transformers_loads(
    tiny: Any, name: str
) -> None:
    settings = tiny(name).settings(dtype="bfloat16")
    config = read_config(settings)
    model = load_straight(settings.model_directory, config, torch.bfloat16, torch.device("cpu"))
    if name in CONVERTED:
        assert model is None  # and then transformers loads it
        return
    assert model is not None
    wanted = load_model(settings, config)
    pairs = zip(_tensors(model), _tensors(wanted), strict=True)
    assert all(ours[0] == theirs[0] and torch.equal(ours[1], theirs[1]) for ours, theirs in pairs)


def test_a_device_is_given_each_weight_once_and_the_host_holds_no_copy(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cpu:0` stands for a GPU: another device than the one through which transformers loads."""
    one.model.save_pretrained(tmp_path, max_shard_size="100KB")
    opened: list[tuple[str, str]] = []

    def recorded(path: Path, framework: str, device: str) -> Any:
        opened.append((path.name, device))
        return safe_open(path, framework, "cpu")

    monkeypatch.setattr(straight, "safe_open", recorded)
    monkeypatch.setattr(
        checkpoint, "_loaded_by_transformers", lambda *_: pytest.fail("the weights went through the host")
    )
    settings = replace(one.settings(), model=ModelSettings(str(tmp_path), "float32"))
    model = load_model(settings, read_config(settings), torch.device("cpu:0"))
    names = {path.name for path in tmp_path.glob("*.safetensors")}
    assert len(names) > 2
    assert sorted(opened) == sorted((name, "cpu:0") for name in names)
    assert torch.equal(model.get_output_embeddings().weight, one.model.get_output_embeddings().weight)


def test_weights_under_other_names_or_of_another_shape_are_left_to_transformers(
    one: TinyModel, tmp_path: Path
) -> None:
    settings = one.settings()
    config = read_config(settings)
    weights = load_file(settings.model_directory / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    for changed in ({f"old.{name}": weights[name]}, {name: weights[name][:1].clone()}):
        save_file(
            {each: tensor for each, tensor in weights.items() if each != name} | changed,
            tmp_path / "model.safetensors",
        )
        assert load_straight(tmp_path, config, torch.float32, torch.device("cpu")) is None
    assert load_straight(tmp_path / "nowhere", config, torch.float32, torch.device("cpu")) is None


UP = "model.layers.1.mlp.up_proj.weight"
Weights = dict[str, torch.Tensor]


@pytest.fixture
def other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cpu:0` stands for a GPU: another device than the one through which transformers loads."""
    monkeypatch.setattr(straight, "safe_open", lambda path, framework, device: safe_open(path, framework))


def _stored(model: TinyModel, directory: Path, change: Callable[[Weights], Any]) -> Settings:
    """Settings of a copy of `model` with other weights in its file."""
    shutil.copytree(model.directory, directory, dirs_exist_ok=True)
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors")
    return replace(model.settings(), model=ModelSettings(str(directory), "float32"))


@pytest.mark.usefixtures("other_device")
@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda weights: weights.pop(UP), f"the weights lack {UP}"),
        (lambda weights: weights.pop("lm_head.weight"), "the weights lack lm_head.weight"),
        (
            lambda weights: weights.update({f"{UP}_scale": torch.ones(1)}),
            f"this model has no place for {UP}_scale",
        ),
        (lambda weights: weights.update({UP: weights[UP][:1].clone()}), f"config.json says are {UP}"),
    ],
    ids=["missing", "no head", "scale", "shape"],
)
def test_a_model_is_served_whole_or_refused_by_the_names_of_its_tensors(
    one: TinyModel, tmp_path: Path, device: str, change: Callable[[Weights], Any], says: str
) -> None:
    settings = _stored(one, tmp_path, change)
    with pytest.raises(SettingsError) as refused:
        load_model(settings, read_config(settings), torch.device(device))
    assert says in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("other_device")
@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_tensors_that_a_model_computes_or_ties_may_be_stored_as_well(
    tiny: Any, tmp_path: Path, device: str
) -> None:
    def add(weights: Weights) -> None:
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()

    settings = _stored(tiny("llama_tied"), tmp_path, add)
    model = load_model(settings, read_config(settings), torch.device(device))
    expected = tiny("llama_tied").model.get_output_embeddings().weight
    assert torch.equal(model.get_output_embeddings().weight, expected)


@pytest.mark.usefixtures("other_device")
@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\0" * 99])
def test_a_file_of_weights_that_cannot_be_read_is_named(
    one: TinyModel, tmp_path: Path, content: bytes
) -> None:
    one.model.save_pretrained(tmp_path, max_shard_size="100KB")
    broken = sorted(tmp_path.glob("model-*.safetensors"))[1]
    broken.write_bytes(content)
    settings = replace(one.settings(), model=ModelSettings(str(tmp_path), "float32"))
    for device in ("cpu", "cpu:0"):
        with pytest.raises(SettingsError, match=f"{broken.name} can't be loaded: "):
            load_model(settings, read_config(settings), torch.device(device))


def test_a_directory_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"config\.json"):
        TorchEngine(Settings(model=ModelSettings(directory=str(tmp_path), dtype="float32")))


def test_limits_come_from_settings_checkpoint_and_memory(one: TinyModel) -> None:
    block_bytes = 3 * 2 * 8 * 2 * 16 * 4
    assert _limits(one, kv_blocks=77).num_blocks == 77
    # no more than the slots can use, and as much again to keep
    assert _limits(one).num_blocks == 2 * 4 * 384 // 8
    assert _limits(one).max_model_tokens == 384
    assert _limits(one, max_model_tokens=100).max_model_tokens == 100
    small = _limits(one, kv_memory_gib=20.5 * block_bytes / 2**30)
    assert (small.num_blocks, small.max_model_tokens) == (20, 160)


@pytest.mark.parametrize(
    ("engine", "named"),
    [
        ({"max_model_tokens": 385}, "max_model_tokens = 385"),
        ({"max_model_tokens": 200, "kv_blocks": 10}, "only 80 tokens"),
        ({"kv_memory_gib": 1e-9}, "one block takes"),
    ],
)
def test_limits_that_can_not_be_met_are_refused(one: TinyModel, engine: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        _limits(one, **engine)


def test_steps_are_cut_to_the_sizes_that_they_are_padded_to(one: TinyModel) -> None:
    """On a GPU the multiple is 32, whatever processor the host has."""
    multiple = _limits(one).row_multiple
    assert all(padded(rows) == rows for rows in range(multiple, 513, multiple))
    assert _limits(one, device="cuda", kv_blocks=77).row_multiple == 32


def test_the_fingerprint_tells_weights_and_dtypes_apart(one: TinyModel, tiny: Any) -> None:
    prints = {
        fingerprint_of(one.settings()),
        fingerprint_of(one.settings(dtype="bfloat16")),
        fingerprint_of(tiny("qwen2").settings()),
    }
    prints.add(fingerprint_of(one.settings(weights="int8")))
    assert len(prints) == 4
    assert fingerprint_of(one.settings()) == fingerprint_of(one.settings(slots=9))


def test_the_fingerprint_tells_other_weights_of_the_same_names_and_sizes_apart(
    one: TinyModel, tmp_path: Path
) -> None:
    """One small tensor of many is enough."""
    prints = {fingerprint_of(one.settings())}
    for value in (1.0, 2.0):
        stored = _stored(
            one, tmp_path, lambda weights, value=value: weights["model.norm.weight"].fill_(value)
        )
        prints.add(fingerprint_of(stored))
    assert len(prints) == 3


def _tensors(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Weights and buffers, also those that no checkpoint holds."""
    return sorted([*model.named_parameters(), *model.named_buffers()], key=lambda pair: pair[0])


def _limits(tiny: TinyModel, **engine: Any) -> Any:
    settings = tiny.settings(**engine)
    return model_limits(settings, read_config(settings))


def _changed(tiny: TinyModel, directory: Path, change: dict[str, Any]) -> Settings:
    shutil.copytree(tiny.directory, directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | change))
    return Settings(model=ModelSettings(directory=str(directory), dtype="float32"))
