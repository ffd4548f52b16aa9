"""Checkpoints that are spoiled, odd or old: each is refused in one line that names what is wrong, or served
exactly as transformers serves it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from python_backends.engine.torch.engine import TorchEngine
from python_backends.settings import ModelSettings, SettingsError
from tests.support.tiny_models import Agreement, Serving, TinyModel, random_requests

Spoil = Callable[[Path], object]
Weights = dict[str, Tensor]
UP, NORM, HEAD = "model.layers.1.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"
EMBEDDING, FILE, INDEX = "model.embed_tokens.weight", "model.safetensors", "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7610880\n"


def configured(**changes: Any) -> Spoil:
    def spoil(path: Path) -> None:
        config = json.loads((path / "config.json").read_text()) | changes
        (path / "config.json").write_text(
            json.dumps({name: value for name, value in config.items() if value is not ...})
        )

    return spoil


def stored(change: Callable[[Weights], object], **metadata: str) -> Spoil:
    def spoil(path: Path) -> None:
        weights = load_file(path / FILE)
        change(weights)
        save_file({name: each.contiguous() for name, each in weights.items()}, path / FILE, metadata or None)

    return spoil


def without(*names: str) -> Spoil:
    return stored(lambda weights: [weights.pop(name) for name in names])


def added(**tensors: Tensor) -> Spoil:
    return stored(lambda weights: weights.update(tensors))


def renamed(name: Callable[[str], str]) -> Spoil:
    def change(weights: Weights) -> None:
        old = dict(weights)
        weights.clear()
        weights.update({name(key): each for key, each in old.items()})

    return stored(change)


def typed(dtype: torch.dtype, names: Iterable[str] | None = None, scale: str = "") -> Spoil:
    def change(weights: Weights) -> None:
        for name in [name for name in weights if names is None or name in names]:
            weights[name] = weights[name].to(dtype)
            if scale:
                weights[name + scale] = torch.ones(1)

    return stored(change)


def both(*spoils: Spoil) -> Spoil:
    return lambda path: [spoil(path) for spoil in spoils]


def written(name: str, content: bytes) -> Spoil:
    return lambda path: (path / name).write_bytes(content)


def cut(path: Path) -> None:
    (path / FILE).write_bytes((path / FILE).read_bytes()[:5000])


def sharded(then: Spoil) -> Spoil:
    """In two files with an index."""

    def spoil(path: Path) -> None:
        weights = load_file(path / FILE)
        names = sorted(weights)
        parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
        for file, own in parts.items():
            save_file({name: weights[name] for name in own}, path / file)
        index = {"metadata": {}, "weight_map": {name: file for file, own in parts.items() for name in own}}
        (path / INDEX).write_text(json.dumps(index))
        (path / FILE).unlink()
        then(path)

    return spoil


def pickled(path: Path) -> None:
    torch.save(load_file(path / FILE), path / "pytorch_model.bin")
    (path / FILE).unlink()


def put(name: str, make: Callable[[Path], object]) -> Spoil:
    """Something else in the place of a file."""

    def spoil(path: Path) -> None:
        (path / name).unlink()
        make(path / name)

    return spoil


def pickled_as(content: object) -> Spoil:
    return both(put(FILE, lambda _: None), lambda path: torch.save(content, path / "pytorch_model.bin"))


def indexed(change: Callable[[dict[str, str]], object]) -> Spoil:
    """In two files, with another map of them."""

    def spoil(path: Path) -> None:
        index = json.loads((path / INDEX).read_text())
        change(index["weight_map"])
        (path / INDEX).write_text(json.dumps(index))

    return sharded(spoil)


def twice(path: Path) -> None:
    """The index names a tensor's file two times, first a wrong one."""
    said = (path / INDEX).read_text()
    path.joinpath(INDEX).write_text(said.replace('{"lm_head', f'{{"{HEAD}": "two.safetensors", "lm_head'))


def nothing(_: Path) -> None:
    pass


def other_head(weights: Weights) -> None:
    weights[HEAD] = weights[EMBEDDING].roll(1, 0) * 0.7


REFUSED: dict[str, tuple[Spoil, str]] = {
    "a matrix is missing": (without(UP), f"the weights lack {UP}"),
    "a norm is missing": (without(NORM), f"the weights lack {NORM}"),
    "the embedding is missing": (without(EMBEDDING), f"the weights lack {EMBEDDING}"),
    "the head is missing": (without(HEAD), f"the weights lack {HEAD}"),
    "more layers than stored": (configured(num_hidden_layers=4), r"the weights lack model\.layers\.3\."),
    "fewer layers than stored": (configured(num_hidden_layers=2), r"no place for model\.layers\.2\."),
    "biases that are not stored": (configured(attention_bias=True), r"the weights lack .*k_proj\.bias"),
    "biases that no field names": (
        added(**{"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}),
        r"no place for model\.layers\.0\.self_attn\.q_proj\.bias",
    ),
    "another shape": (configured(intermediate_size=161), r"another shape .* model\.layers\.0\.mlp\."),
    "fewer rows": (configured(vocab_size=500), "another shape .* lm_head.weight, model.embed_tokens.weight"),
    "float8 with scales": (typed(torch.float8_e4m3fn, [UP], "_scale"), f"no place for {UP}_scale"),
    "float8 with inverse scales": (typed(torch.float8_e4m3fn, [UP], "_scale_inv"), f"{UP}_scale_inv"),
    "int8 with scales": (typed(torch.int8, [UP], "_scale"), f"no place for {UP}_scale"),
    "int8 without scales": (typed(torch.int8, [UP]), f"takes float weights only, not {UP}"),
    "another model beside it": (added(**{"vision_tower.w": torch.ones(1)}), r"no place for vision_tower\.w"),
    "a prefix of half the tensors": (
        renamed(lambda name: name if "layers.1" in name else f"base.{name}"),
        r"the weights lack .*model\.layers\.1",
    ),
    "GPTQ": (configured(quantization_config={"quant_method": "gptq"}), "bits = None: only 4, 8 is served"),
    "a scheme without a name": (
        configured(quantization_config={}),
        "quantization_config: quant_method = None: only",
    ),
    "an older scheme": (
        configured(compression_config={"quant_method": "x"}),
        "compression_config: only quantization_config is served",
    ),
    "dtype auto": (configured(dtype="auto"), "dtype = 'auto': must be one of bfloat16"),
    "dtype torch.bfloat16": (configured(dtype=..., torch_dtype="torch.bfloat16"), "dtype = 'torch.bfloat16'"),
    "dtype no text": (configured(dtype={"a": 1}), "dtype = .*must be one of"),
    "no architecture of ours": (
        configured(architectures=["FalconForCausalLM"]),
        "architecture FalconForCausalLM",
    ),
    "another type": (
        configured(model_type="mistral"),
        "model_type = 'mistral': LlamaForCausalLM is of llama",
    ),
    "a size that is no number": (configured(hidden_size="64"), "hidden_size = '64': must be a whole number"),
    "a size below 0": (configured(num_key_value_heads=-2), "num_key_value_heads = -2: must be at least 1"),
    "a size that is missing": (configured(intermediate_size=...), "there is no intermediate_size"),
    "heads without equal groups": (configured(num_key_value_heads=3), "must be a multiple of 3 KV heads"),
    "an odd head": (configured(head_dim=17), "head_dim = 17: must be even"),
    "a flag that is none": (configured(tie_word_embeddings="no"), "tie_word_embeddings = 'no': must be true"),
    "no number for eps": (configured(rms_norm_eps="small"), "rms_norm_eps = 'small': must be a number"),
    "an unknown rope": (configured(rope_parameters={"rope_type": "x"}), "rope_type x: this engine computes"),
    "a rope that is no object": (configured(rope_parameters=[1]), "rope_parameters = .*must be an object"),
    "a rope without its factor": (configured(rope_parameters={"type": "linear"}), "factor = None: must be a"),
    "half a head turns": (
        configured(partial_rotary_factor=0.5),
        "partial_rotary_factor = 0.5: not computed for llama",
    ),
    "layer types of another number": (configured(layer_types=["full_attention"]), "layer_types: must name"),
    "sliding layers in a family without": (
        configured(layer_types=["sliding_attention"] + ["full_attention"] * 2, sliding_window=8),
        "layer type sliding_attention: not computed for llama",
    ),
    "config.json is cut": (written("config.json", b'{"a": '), "config.json: Expecting value"),
    "config.json is a list": (written("config.json", b"[]"), "config.json: must hold a JSON object"),
    "no config.json": (lambda path: (path / "config.json").unlink(), "there is no config.json"),
    "an adapter": (
        lambda path: (path / "config.json").rename(path / "adapter_config.json"),
        "there is no config.json: this is a LoRA adapter; serve its model",
    ),
    "a model's place in the hub's cache": (
        lambda path: [(path / "config.json").unlink(), (path / "snapshots").mkdir()],
        "there is no config.json: .*serve a directory in its snapshots",
    ),
    "config.json nests without end": (written("config.json", b"[" * 100_000), "config.json: .*recursion"),
    "generation_config.json is cut": (written("generation_config.json", b"{"), "generation_config.json: "),
    "a cut file": (cut, f"{FILE} can't be loaded: "),
    "a pointer of Git LFS": (written(FILE, POINTER), f"{FILE} can't be loaded: "),
    "an empty file": (written(FILE, b""), f"{FILE} can't be loaded: "),
    "no weights": (lambda path: (path / FILE).unlink(), f"there are no weights: {FILE}"),
    "a shard is missing": (
        sharded(lambda path: (path / "two.safetensors").unlink()),
        "two.safetensors: it is missing",
    ),
    "a shard is a pointer": (sharded(written("one.safetensors", POINTER)), "one.safetensors can't be loaded"),
    "an index without a map": (sharded(written(INDEX, b"{}")), f"{INDEX}: weight_map must be an object"),
    "an index that is cut": (sharded(written(INDEX, b'{"weight_map"')), f"{INDEX}: "),
    "an index of one shard": (
        sharded(written(INDEX, b'{"weight_map": {"a": "one.safetensors"}}')),
        "the weights lack ",
    ),
    "weights that are a link to themselves": (put(FILE, lambda path: path.symlink_to(path)), "no weights"),
    "weights that are a link to nothing": (put(FILE, lambda path: path.symlink_to("x")), "no weights"),
    "weights that are a directory": (put(FILE, Path.mkdir), "there are no weights"),
    "a shard that is a pipe": (
        sharded(put("two.safetensors", os.mkfifo)),
        r"two\.safetensors can't be loaded: .*no regular file",
    ),
    "a configuration that is a link to itself": (
        put("config.json", lambda path: path.symlink_to(path)),
        "there is no config.json",
    ),
    "an empty configuration": (written("config.json", b""), "config.json: Expecting value"),
    "a configuration in UTF-16": (
        written("config.json", "{}".encode("utf-16")),
        "config.json: 'utf-8' codec",
    ),
    "a shard that no name of the index is in": (
        indexed(lambda files: [files.pop(name) for name in set(files) if files[name] == "two.safetensors"]),
        "the weights lack ",
    ),
    "a shard elsewhere": (
        indexed(lambda files: files.update({HEAD: "../two.safetensors"})),
        f"{INDEX}: weight_map names '../two.safetensors': must be a file of the directory",
    ),
    "a shard without a name": (indexed(lambda files: files.update({HEAD: ""})), "weight_map names ''"),
    "a norm of two dimensions": (
        stored(lambda weights: weights.update({NORM: torch.ones(1, 64)})),
        f"another shape .* {NORM}",
    ),
    "a matrix on its side": (
        stored(lambda weights: weights.update({UP: weights[UP].T})),
        f"another shape .* {UP}",
    ),
    "truth values": (typed(torch.bool, [UP]), f"takes float weights only, not {UP}"),
    "bytes": (typed(torch.uint8, [UP]), f"takes float weights only, not {UP}"),
    "a name of two lines": (added(**{"a\nb": torch.ones(1)}), "no place for a b$"),
    "a name without end": (added(**{"x" * 5000: torch.ones(1)}), "no place for x{200}$"),
    "an architecture of two lines": (configured(architectures=["a\nb"]), "architecture a b: this engine"),
    "an architecture that is none": (configured(architectures=[{"a": 1}]), "architecture {'a': 1}: this"),
    "neither architecture nor type": (configured(architectures=..., model_type=...), "architecture none: "),
    "a thousand million layers": (
        configured(num_hidden_layers=10**9),
        "num_hidden_layers = 1000000000: must",
    ),
    "a size beyond all numbers": (configured(hidden_size=float("inf")), "hidden_size = inf: must be a whole"),
    "angles without a base": (
        configured(rope_theta=0, rope_parameters=...),
        "rope_theta = 0.0: must be above",
    ),
    "a negative eps": (configured(rms_norm_eps=-1), "rms_norm_eps = -1.0: must be at least 0"),
    "an end that is no number": (configured(eos_token_id="</s>"), "eos_token_id = '</s>': must be a whole"),
    "a pickled list": (pickled_as([torch.ones(2)]), r"pytorch_model\.bin can't be loaded: .*by their names"),
    "a pickled table in a table": (pickled_as({"a": {"b": torch.ones(2)}}), "tensors by their names"),
    "tensors with numbers for names": (pickled_as({5: torch.ones(2)}), "tensors by their names"),
    "a broken pickle": (both(pickled, written("pytorch_model.bin", b"x")), "pytorch_model.bin can't be"),
}
SERVED: dict[str, Spoil] = {
    "in shards": sharded(nothing),
    "a whole file beside an index of others": both(
        lambda path: shutil.copy(path / FILE, path / "kept"),
        sharded(lambda path: (path / "one.safetensors").write_bytes(b"")),
        lambda path: (path / "kept").rename(path / FILE),
    ),
    "a tensor that the index names twice": sharded(twice),
    "a stray file": written("consolidated.safetensors", b"not asked for"),
    "PyTorch's own file": pickled,
    "float16": typed(torch.float16),
    "float64": typed(torch.float64),
    "mixed types": typed(torch.bfloat16, [UP, NORM]),
    "plain float8": typed(torch.float8_e5m2, [UP]),
    "metadata of others": stored(lambda _: None, format="tf", more="x"),
    "computed buffers": added(**{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}),
    "a bare body": renamed(lambda name: name.removeprefix("model.")),
    "no dtype": configured(dtype=...),
    "quantised by nothing": configured(quantization_config=None),
    "another of the old names of a rope": configured(
        rope_parameters=..., rope_scaling={"type": "linear", "rope_type": "linear", "factor": 2.0}
    ),
    "a rope of old with whole numbers": configured(
        rope_parameters=...,
        rope_theta=10_000,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8,
            "low_freq_factor": 1,
            "high_freq_factor": 4,
            "original_max_position_embeddings": 64,
        },
    ),
    "no architecture": configured(architectures=...),
    "tied with a head of its own": both(configured(tie_word_embeddings=True), stored(other_head)),
    "tied with a copy of the embedding": both(
        configured(tie_word_embeddings=True),
        stored(lambda weights: weights.update({HEAD: weights[EMBEDDING].clone()})),
    ),
    "tied without a head": both(configured(tie_word_embeddings=True), without(HEAD)),
    "tied with only a head": both(configured(tie_word_embeddings=True), without(EMBEDDING)),
    "an old rope": configured(rope_parameters=..., rope_scaling={"type": "linear", "factor": 2.0}),
    "a rope at the top": configured(rope_parameters=..., rope_theta=5000.0),
    "no key heads": configured(num_key_value_heads=2, head_dim=...),
}


def _spoiled(one: TinyModel, directory: Path, spoil: Spoil) -> Any:
    shutil.copytree(one.directory, directory, dirs_exist_ok=True)
    spoil(directory)
    return replace(one.settings(), model=ModelSettings(str(directory), "float32"))


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_name_in_one_line(one: TinyModel, tmp_path: Path, what: str) -> None:
    spoil, says = REFUSED[what]
    settings = _spoiled(one, tmp_path, spoil)
    by_layers = replace(settings, engine=replace(settings.engine, block_tokens=32))
    for given in (settings, by_layers):
        with pytest.raises(SettingsError, match=says) as refused:
            TorchEngine(given)
        assert str(refused.value).startswith(f"model.directory = '{tmp_path}': ")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("what", SERVED)
def test_it_is_served_as_transformers_serves_it(one: TinyModel, tmp_path: Path, what: str) -> None:
    settings = _spoiled(one, tmp_path, SERVED[what])
    config = json.loads((tmp_path / "config.json").read_text())
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    reference = TinyModel(tmp_path, theirs, Agreement())
    assert config["model_type"] == "llama"
    requests = random_requests(3)
    reference.check_all(requests, Serving(TorchEngine(settings)).run(requests))
