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
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from python_backends.checkpoint import weight_files
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import Stored
from python_backends.checkpoint.tensor_names import embedding_name, shapes_of
from python_backends.engine.kv.padding import padded
from python_backends.engine.model.limits import fingerprint_of, model_limits
from python_backends.engine.model.loading import facts_of, open_weights
from python_backends.engine.torch.engine import TorchEngine
from python_backends.settings import EngineSettings, ModelSettings, Settings, SettingsError
from tests.support.tiny_models import RELATIVES, TINY, WITH_IMAGES, Serving, TinyModel, random_requests


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
        ({"architectures": ["FalconForCausalLM"], "model_type": "falcon"}, "FalconForCausalLM"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        (
            {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type proportional",
        ),
        ({"hidden_act": "quick_gelu"}, "hidden_act quick_gelu"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "quantization_config: quant_method = 'bitsandbytes': only compressed-tensors, fp8",
        ),
        ({"model_type": "unheard_of"}, "unheard_of"),
        (
            {"hidden_size": 65, "head_dim": None},
            "hidden_size = 65: must be a multiple of num_attention_heads = 4",
        ),
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
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights = false: not computed"),
        ("gpt2", {"n_inner": -1}, "n_inner = -1: must be at least 1"),
        ("gpt2", {"n_positions": 385}, r"another shape than config.json says are transformer.wpe.weight"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv of architecture OlmoeForCausalLM"),
        ("olmoe", {"num_experts_per_tok": 9}, "num_experts_per_tok = 9: there are 8 experts"),
        ("mixtral", {"num_local_experts": 9}, r"weights lack model.layers.0.block_sparse_moe.experts.8.w"),
        ("mixtral", {"num_local_experts": 7}, r"another shape .* model.layers.0.block_sparse_moe.gate"),
        ("qwen3_moe", {"moe_intermediate_size": 64}, r"another shape .* model.layers.0.mlp.experts.0"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"the weights lack model.layers.0.mlp.down_proj.weight"),
        ("qwen3_moe", {"mlp_only_layers": "1"}, "mlp_only_layers: must be a list of whole numbers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step = 0: must be at least 1"),
    ],
)
def test_what_one_family_alone_may_ask_for_is_refused_by_name(
    tiny: Any, tmp_path: Path, name: str, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        TorchEngine(_changed(tiny(name), tmp_path, change))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The file of each tensor that is read, and the device for which; a GPU gets what lies in the host's
    memory.
    """
    found, read = list[tuple[str, str]](), weight_files.read

    def recorded(name: str, stored: Stored, device: torch.device | str) -> torch.Tensor:
        found.append((stored.file.name, str(device)))
        return read(name, stored, "cpu")

    monkeypatch.setattr(weight_files, "read", recorded)
    return found


@pytest.mark.parametrize("name", sorted(TINY | RELATIVES))
def test_both_devices_are_given_the_tensors_that_transformers_loads(
    tiny: Any, name: str, opened: list[tuple[str, str]]
) -> None:
    settings = tiny(name).settings(dtype="bfloat16")
    facts = facts_of(settings)
    loaded = AutoModelForCausalLM.from_pretrained(settings.model_directory, dtype=torch.bfloat16)
    wanted = loaded.state_dict()
    for device in (torch.device("cpu"), torch.device("cuda:0")):
        weights = open_weights(settings, facts, device)
        for key in shapes_of(facts):
            assert torch.equal(weights.tensor(key), wanted[key]), key
    assert {device for _, device in opened} == {"cpu", "cuda:0"}


def test_a_device_is_given_each_weight_once_from_its_own_file(
    one: TinyModel, tmp_path: Path, opened: list[tuple[str, str]]
) -> None:
    one.model.save_pretrained(tmp_path, max_shard_size="100KB")
    settings = replace(one.settings(), model=ModelSettings(str(tmp_path), "float32"))
    facts = facts_of(settings)
    weights = open_weights(settings, facts, torch.device("cuda:0"))
    assert opened == []
    for key in shapes_of(facts):
        weights.tensor(key)
    places = open_source(tmp_path).tensors
    assert sorted(opened) == sorted((stored.file.name, "cuda:0") for stored in places.values())
    assert len({name for name, _ in opened}) > 2


@pytest.mark.parametrize("name", sorted(WITH_IMAGES))
def test_what_reads_images_is_left_out_however_its_tensors_are_named(
    tiny: Any, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By transformers 5's names too, which `save_pretrained` turns into older ones."""
    model = tiny(name)
    tied = model.model.get_output_embeddings().weight is model.model.get_input_embeddings().weight

    def rename(weights: Weights) -> None:
        weights.clear()
        named = model.model.state_dict().items()
        weights.update({key: each for key, each in named if not tied or key != "lm_head.weight"})

    own = load_file(model.directory / "model.safetensors").keys()
    settings = _stored(model, tmp_path, rename)
    others = load_file(tmp_path / "model.safetensors").keys()
    assert name == "qwen3_vl" or own.isdisjoint(each for each in others if each != "lm_head.weight")
    requests = random_requests(2)
    with caplog.at_level("INFO"):
        engine = TorchEngine(settings)
    assert f"of {type(model.model).__name__} the part for text is served" in caplog.text
    model.check_all(requests, Serving(engine).run(requests))


@pytest.mark.parametrize("name", ["gemma3", "qwen2"])
def test_what_reads_images_has_no_place_in_a_model_of_text(tiny: Any, tmp_path: Path, name: str) -> None:
    def add(weights: Weights) -> None:
        weights["visual.merger.weight"] = torch.ones(2, 2)

    with pytest.raises(SettingsError, match=r"this model has no place for visual.merger.weight"):
        TorchEngine(_stored(tiny(name), tmp_path, add))


def test_what_is_read_stays_as_it_was_when_the_file_changes(one: TinyModel, tmp_path: Path) -> None:
    shutil.copytree(one.directory, tmp_path, dirs_exist_ok=True)
    settings = replace(one.settings(), model=ModelSettings(str(tmp_path), "float32"))
    read = open_weights(settings, facts_of(settings)).tensor(UP)
    before = read.clone()
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(read, before)


UP = "model.layers.1.mlp.up_proj.weight"
Weights = dict[str, torch.Tensor]


def _stored(model: TinyModel, directory: Path, change: Callable[[Weights], Any]) -> Settings:
    """Settings of a copy of `model` with other weights in its file."""
    shutil.copytree(model.directory, directory, dirs_exist_ok=True)
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file(weights, directory / "model.safetensors")
    return replace(model.settings(), model=ModelSettings(str(directory), "float32"))


@pytest.mark.parametrize("name", ["llama_tied", "gpt_neox", "gpt2"])
@pytest.mark.parametrize("prefix", ["", "base.", "language_model.model."])
def test_the_body_may_have_any_prefix(tiny: Any, tmp_path: Path, name: str, prefix: str) -> None:
    model = tiny(name)

    def rename(weights: Weights) -> None:
        old = dict(weights)
        weights.clear()
        body = f"{model.model.base_model_prefix}."
        weights.update({key.replace(body, prefix, key.startswith(body)): each for key, each in old.items()})
        if name == "gpt2":  # its published files hold causal masks, too
            weights[f"{prefix}h.0.attn.bias"] = torch.ones(1, 1, 384, 384)

    settings = _stored(model, tmp_path, rename)
    weights, wanted = open_weights(settings, facts_of(settings)), model.model.state_dict()
    assert all(torch.equal(weights.tensor(key), each) for key, each in wanted.items())


@pytest.mark.parametrize("name", ["llama_tied", "gemma3", "gpt_neox"])
def test_random_weights_need_no_files_and_are_the_same_in_every_instance(
    tiny: Any, tmp_path: Path, name: str
) -> None:
    shutil.copy(tiny(name).directory / "config.json", tmp_path)
    model = ModelSettings(str(tmp_path), "float32", random_weights=True)
    settings = replace(tiny(name).settings(), model=model)
    requests = random_requests(2)
    first, second = (Serving(TorchEngine(settings)).run(requests) for _ in range(2))
    assert first == second
    assert open_weights(settings, facts_of(settings)).tensor(embedding_name(facts_of(settings))).std() > 0.01


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


def _limits(tiny: TinyModel, **engine: Any) -> Any:
    settings = tiny.settings(**engine)
    return model_limits(settings, facts_of(settings))


def _changed(tiny: TinyModel, directory: Path, change: dict[str, Any]) -> Settings:
    shutil.copytree(tiny.directory, directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | change))
    return Settings(model=ModelSettings(directory=str(directory), dtype="float32"))
