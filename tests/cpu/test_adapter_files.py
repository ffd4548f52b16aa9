"""Directories of LoRA adapters: what PEFT writes is read for every family, what we write PEFT reads, and
what is not computed is refused by name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from python_backends.engine.adapter_directory import CONFIG, WEIGHTS
from python_backends.engine.model.weights import take_layers
from python_backends.engine.protocol import BadAdapterError
from python_backends.engine.torch.adapters import modules, peft_files
from python_backends.engine.torch.adapters.factors import AdaptedModel, adapted_model
from python_backends.engine.torch.adapters.modules import modules_of, names_of
from python_backends.nouns.training import AdapterShape
from tests.support.model_source import facts_from, read_from
from tests.support.peft_adapters import save_adapter
from tests.support.tiny_models import RELATIVES, TINY, WITH_EXPERTS, WITH_IMAGES, build

MOST_BYTES = 1 << 34  # of weights
Tensors = dict[str, torch.Tensor]
# PEFT asks transformers by an older name
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def transformed(name: str) -> Any:
    """transformers' model, as it is after it was saved and loaded."""
    model = build(name)
    model.config.architectures = [type(model).__name__]
    return model


def adapted(model: Any) -> AdaptedModel:
    return adapted_model(facts_from(model), torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("name", sorted(TINY | RELATIVES | WITH_IMAGES))
def test_the_products_of_what_peft_writes_are_those_of_peft(name: str, tmp_path: Path) -> None:
    """Merged by PEFT, the weights of every product differ from the model's by B·A, in our order of rows."""
    model = transformed(name)
    directory = save_adapter(model, tmp_path, rank=4, patterns=True)
    factors = adapted(model).factors(peft_files.read(directory, tmp_path, MOST_BYTES))
    plain, merged = transformed(name), transformed(name)
    merged = PeftModel.from_pretrained(merged, directory).merge_and_unload()
    layers = (take_layers(*read_from(each)) for each in (plain, merged))
    for ours, before, after in zip(factors, *layers, strict=True):
        products = {
            "qkv": (before.attention.qkv, after.attention.qkv),
            "o": (before.attention.output, after.attention.output),
        }
        if name not in WITH_EXPERTS:
            products["up"] = (before.feed_forward.up, after.feed_forward.up)
            products["down"] = (before.feed_forward.down, after.feed_forward.down)
        assert ours.keys() == products.keys()
        for product, (old, new) in products.items():
            change = new.weight - old.weight
            assert change.abs().max() > 1e-3
            assert torch.allclose(ours[product].b @ ours[product].a, change, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "older"), [("gemma3_vision", ".language_model.model."), ("qwen2_5_vl", ".model.")]
)
def test_keys_of_an_older_transformers_are_of_the_same_modules(name: str, older: str, tmp_path: Path) -> None:
    """Those of what reads images are refused."""
    model = transformed(name)
    directory = save_adapter(model, tmp_path, rank=4, patterns=True)
    tensors = load_file(directory / WEIGHTS)

    def factors(body: str) -> list[Any]:
        named = {key.replace(".model.language_model.", body): each for key, each in tensors.items()}
        save_file(named, directory / WEIGHTS)
        return adapted(model).factors(peft_files.read(directory, tmp_path, MOST_BYTES))

    for one, other in zip(factors(older), factors(".model.language_model."), strict=True):
        assert one.keys() == other.keys()
        for product in one:
            assert torch.equal(one[product].a, other[product].a)
            assert torch.equal(one[product].b, other[product].b)
    with pytest.raises(BadAdapterError, match=r"vision_tower.*: this model has no such module"):
        factors(".model.vision_tower.")


@pytest.mark.parametrize("name", ["llama_grouped", "gpt2"])
def test_peft_reads_what_is_written(name: str, tmp_path: Path) -> None:
    """It warns of a `fan_in_fan_out` that is not its module's, and a warning is an error here."""
    model = transformed(name)
    first = save_adapter(model, tmp_path / "theirs", rank=4)
    tensors = load_file(first / WEIGHTS)
    shape = AdapterShape(4, 8.0, names_of(modules_of(facts_from(model))))
    (tmp_path / "ours").mkdir()
    weights = {key: tensor.numpy().astype(np.float32) for key, tensor in tensors.items()}
    peft_files.write(tmp_path / "ours", weights, shape, "tiny")
    read = PeftModel.from_pretrained(model, tmp_path / "ours").state_dict()
    for key, tensor in tensors.items():
        assert torch.equal(read[key.replace(".weight", ".default.weight")], tensor)
    ours, theirs = (peft_files.read(each, tmp_path, MOST_BYTES) for each in (tmp_path / "ours", first))
    for one, other in zip(adapted(model).factors(ours), adapted(model).factors(theirs), strict=True):
        assert all(torch.equal(one[name].b, other[name].b) for name in one)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(transformed("llama_grouped"), tmp_path_factory.mktemp("adapters"), rank=4)


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _tensors(change: Callable[[Tensors, str], Tensors]) -> Callable[[Path], None]:
    """`change` gets all tensors, and the key of the first B of q; it returns those that are written."""

    def write(directory: Path) -> None:
        tensors = load_file(directory / WEIGHTS)
        tensors = change(tensors, next(key for key in sorted(tensors) if "q_proj.lora_B" in key))
        save_file({key: each.clone() for key, each in tensors.items()}, directory / WEIGHTS)

    return write


def _longer(name: str, size: int, keep: int = 1 << 30) -> Callable[[Path], None]:
    """The file has holes up to `size`, after `keep` bytes of its own."""

    def change(directory: Path) -> None:
        path = directory / name
        path.write_bytes(path.read_bytes()[:keep])
        os.truncate(path, size)

    return change


def _instead(name: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Something else in place of a file."""

    def change(directory: Path) -> None:
        (directory / name).unlink()
        make(directory / name)

    return change


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no configuration": (lambda d: (d / CONFIG).unlink(), "adapter_config.json"),
    "no JSON": (lambda d: (d / CONFIG).write_text("{"), "must be JSON"),
    "pickle": (
        lambda d: (d / WEIGHTS).rename(d / "adapter_model.bin"),
        "adapter_model.bin: only adapter_model.safetensors is read",
    ),
    "cut": (lambda d: (d / WEIGHTS).write_bytes(b"\0" * 20), "adapter_model.safetensors: "),
    "another method": (_config(peft_type="IA3"), "peft_type = 'IA3'"),
    "DoRA": (_config(use_dora=True), "use_dora = True: not supported"),
    "bias": (_config(bias="all"), "bias = 'all': not supported"),
    "bias of B": (_config(lora_bias=True), "lora_bias = True"),
    "saved modules": (_config(modules_to_save=["lm_head"]), "modules_to_save = ['lm_head']"),
    "new tokens": (_config(trainable_token_indices=[1]), "trainable_token_indices = [1]"),
    "aLoRA": (_config(alora_invocation_tokens=[1]), "alora_invocation_tokens = [1]"),
    "a field of the future": (_config(use_something=True), "use_something = True: not supported"),
    "another start": (_config(init_lora_weights="pissa"), "init_lora_weights = 'pissa'"),
    "no rank": (_config(r=0), "r = 0: must be a whole number of at least 1"),
    "another rank": (_config(r=5), "must be [5, 64]"),
    "too large a rank": (_config(r=257), "rank 257 of model.layers.0.self_attn.q_proj: must be at most 256"),
    "a rank of 400 digits": (_config(r=10**400), "must be a whole number of at least 1"),
    "an alpha of 400 digits": (_config(lora_alpha=10**400), "must be a finite number"),
    "alpha is not a number": (_config(lora_alpha=float("nan")), "lora_alpha = nan: must be a finite number"),
    "a broken pattern": (_config(rank_pattern={"(": 3}), "rank_pattern: '('"),
    "a pattern that must stand alone": (
        _config(rank_pattern={"(?i)q_proj": 3}),
        "rank_pattern: '(?i)q_proj'",
    ),
    "a pattern that re never ends": (
        _config(rank_pattern={"(([a-z0-9._]+)+)+!": 4}),
        "rank_pattern: '(([a-z0-9._]+)+)+!': a repetition inside of a repetition",
    ),
    "such a pattern of alpha": (_config(alpha_pattern={"(a|a)*" * 200: 4}), "alpha_pattern: '(a|a)*"),
    "many patterns": (_config(rank_pattern={f"x{i}": 4 for i in range(5000)}), "rank_pattern: 5000 patterns"),
    "long patterns": (
        _config(rank_pattern={"[a-z]*" * 150 + str(i): 4 for i in range(9)}),
        "9 patterns, 8109 char",
    ),
    "a pattern that is no object": (_config(rank_pattern=["q_proj"]), "rank_pattern = ['q_proj']: must be a"),
    "a text as rsLoRA": (_config(use_rslora="false"), "use_rslora = 'false': must be true or false"),
    "a number as rsLoRA": (_config(use_rslora=1), "use_rslora = 1: must be true or false"),
    "targets of numbers": (_config(target_modules=[3]), "target_modules: 3: must be a string"),
    "targets of another kind": (
        _config(target_modules={"q": 1}),
        "target_modules = {'q': 1}: must be a list",
    ),
    "a directory in place of weights": (
        _instead(WEIGHTS, Path.mkdir),
        "adapter_model.safetensors: it is no file",
    ),
    "a pipe in place of the configuration": (
        _instead(CONFIG, os.mkfifo),
        "adapter_config.json: it is no file",
    ),
    "a large configuration": (
        _longer(CONFIG, 1 << 40),
        "adapter_config.json: it has 1099511627776 bytes: must be at most 1048576",
    ),
    "holes behind the weights": (
        _longer(WEIGHTS, 1 << 33),
        "adapter_model.safetensors: it has 8589934592 bytes: must have",
    ),
    "nothing but holes": (
        _longer(WEIGHTS, 1 << 33, keep=0),
        "adapter_model.safetensors: its header is none of safetensors",
    ),
    "more than any adapter has": (
        _longer(WEIGHTS, 1 << 40),
        "adapter_model.safetensors: it has 1099511627776 bytes: must be at most 17179869184",
    ),
    "a header of another kind": (
        lambda d: (d / WEIGHTS).write_bytes((4).to_bytes(8, "little") + b"[[3]]"),
        "adapter_model.safetensors: its header is none",
    ),
    "a target without tensors": (_config(target_modules=["lm_head"]), "target_modules: 'lm_head'"),
    "an unknown module": (
        _tensors(lambda t, key: {**t, "base_model.model.lm_head.lora_A.weight": t[key]}),
        "base_model.model.lm_head.lora_A.weight: this model has no such module",
    ),
    "half a pair": (
        _tensors(lambda t, key: {each: t[each] for each in t if each != key}),
        "lora_B.weight: it is missing",
    ),
    "another shape": (_tensors(lambda t, key: {**t, key: t[key][1:]}), "its shape is [63, 4]"),
    "not a number": (_tensors(lambda t, key: {**t, key: t[key] / 0}), "all values must be finite"),
    "not a number once it is scaled": (_config(lora_alpha=1e300), "scaled by 2.5e+299: must be finite"),
    "not a number in float32": (
        _tensors(lambda t, key: {**t, key: t[key].double() * 1e300}),
        "all values must be finite",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_not_computed_is_refused_by_name(what: str, good: Path, tmp_path: Path) -> None:
    change, says = BAD[what]
    directory = tmp_path / "law"
    shutil.copytree(good, directory)
    change(directory)
    with pytest.raises(BadAdapterError) as refused:
        adapted(transformed("llama_grouped")).factors(peft_files.read(directory, tmp_path, MOST_BYTES))
    assert says in str(refused.value)


def test_weights_of_one_byte_are_read(good: Path, tmp_path: Path) -> None:
    """torch can't say of these whether they are finite."""
    directory = tmp_path / "law"
    shutil.copytree(good, directory)
    _tensors(lambda t, key: {**t, key: t[key].to(torch.float8_e4m3fn)})(directory)
    assert adapted(transformed("llama_grouped")).factors(peft_files.read(directory, tmp_path, MOST_BYTES))


def test_links_lead_to_nothing_outside(good: Path, tmp_path: Path) -> None:
    (tmp_path / "root" / "law").mkdir(parents=True)
    (tmp_path / "root" / "poems").symlink_to(good)
    for file in good.iterdir():
        (tmp_path / "root" / "law" / file.name).symlink_to(file)
    for name in ("law", "poems"):
        with pytest.raises(BadAdapterError, match="leads out of"):
            peft_files.read(tmp_path / "root" / name, tmp_path / "root", MOST_BYTES)


def test_weights_are_read_up_to_what_the_largest_rank_allows(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = adapted(transformed("llama_grouped"))
    most_bytes, size = model.most_bytes, (good / WEIGHTS).stat().st_size
    assert peft_files.read(good, good.parent, most_bytes)
    monkeypatch.setattr(modules, "MAX_RANK", 1)
    assert size < model.most_bytes < most_bytes
    with pytest.raises(BadAdapterError, match=f"it has {size} bytes: must be at most {size - 1}"):
        peft_files.read(good, good.parent, size - 1)


def test_the_digest_is_of_the_content(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "copy")
    same = peft_files.read(tmp_path / "copy", tmp_path, MOST_BYTES).digest
    assert same == peft_files.read(good, good.parent, MOST_BYTES).digest
    _config(lora_alpha=9)(tmp_path / "copy")
    assert peft_files.read(tmp_path / "copy", tmp_path, MOST_BYTES).digest != same
