"""A process that loads a checkpoint for layers in C++ grows by little more than the weights served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from python_backends.checkpoint.model_facts import read_model_facts
from python_backends.checkpoint.tensor_names import HEAD, shapes_of
from python_backends.engine.cpu.library import library
from tests.support.forked import result
from tests.support.load_memory import load
from tests.support.model_source import ModelSource
from tests.support.published import published

MOST = 1.3  # times the weights
WEIGHTS = ("same", "int8", "int4")
CONFIG = LlamaConfig(
    architectures=["LlamaForCausalLM"],
    dtype="bfloat16",
    hidden_size=640,
    intermediate_size=1920,
    num_hidden_layers=12,
    num_attention_heads=10,
    num_key_value_heads=2,
    vocab_size=160_000,
    tie_word_embeddings=True,
)

pytestmark = pytest.mark.skipif(library() is None, reason="wants a C++ compiler, and AVX2")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most of its weights are the embedding, which is the head's weight, too."""
    directory = tmp_path_factory.mktemp("model")
    config = CONFIG.to_dict()
    (directory / "config.json").write_text(json.dumps(config))
    shapes = shapes_of(read_model_facts(ModelSource(config)))
    drawn = torch.randn(1 << 20).bfloat16()
    made = {name: drawn.repeat(-(-torch.Size(shape).numel() // len(drawn))) for name, shape in shapes.items()}
    tensors = {
        name: made[name][: torch.Size(shape).numel()].view(shape).clone()
        for name, shape in shapes.items()
        if name != f"{HEAD}.weight"
    }
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_loading_safetensors_takes_little_more_than_the_weights(
    checkpoint: Path, dtype: str, weights: str
) -> None:
    assert growth(checkpoint, dtype, weights) <= MOST


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_loading_gguf_takes_little_more_than_the_weights(name: str, weights: str) -> None:
    assert growth(published(name), "bfloat16", weights) <= MOST


@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_loading_gguf_in_its_own_bits_takes_little_more_than_those(name: str) -> None:
    assert growth(published(name), "float32", "same") <= MOST


def growth(path: Path, dtype: str, weights: str) -> float:
    """In weights that are served."""
    grown, served = result(load, str(path), dtype, weights)
    print(f"{path.name}, {dtype}, {weights}: {grown / served:.2f} of {served / 1e6:.0f} MB")
    return grown / served
