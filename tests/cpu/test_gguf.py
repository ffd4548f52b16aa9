"""GGUF files against the models that they were made from, and against transformers' own reading of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    OlmoeConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from python_backends.checkpoint.families import FAMILIES
from python_backends.checkpoint.gguf.splits import WORDS
from python_backends.checkpoint.model_facts import read_model_facts
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.tensor_names import shapes_of
from python_backends.engine.cpu.library import library
from python_backends.engine.model.loading import CPU, Weights, facts_of, open_weights
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.torch.engine import TorchEngine
from python_backends.settings import ModelSettings, Settings, SettingsError
from tests.support.gguf_files import LLAMA, byte_level, sentence_piece, write
from tests.support.gguf_models import convert
from tests.support.tiny_models import Agreement, Serving, TinyModel, random_requests

TOKENS = {"bos_token_id": 508, "eos_token_id": 510, "pad_token_id": 508}
SHAPE = {
    **TOKENS,
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.25, 1.5, 2.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
    "attention_factor": 1.1875,
    "original_max_position_embeddings": 2,  # transformers takes the long factors for more tokens
}
BY_LAYER = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
WIDE = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}
MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {"rope_parameters": LLAMA3, "head_dim": 32}),
    "llama_biases": (
        LlamaConfig,
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 16},
    ),
    "qwen2": (Qwen2Config, {"rope_parameters": YARN}),
    "qwen3": (Qwen3Config, {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3_moe": (
        Qwen3MoeConfig,
        {**EXPERTS, "head_dim": 32, "moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
    # transformers reads experts of no other width from GGUF
    "qwen3_moe_768": (Qwen3MoeConfig, {**EXPERTS, "moe_intermediate_size": 768, "norm_topk_prob": True}),
    "mixtral": (MixtralConfig, {**EXPERTS, "head_dim": 16}),
    "olmoe": (OlmoeConfig, EXPERTS),
    "gemma": (GemmaConfig, {"head_dim": 32}),
    "gemma2": (
        Gemma2Config,
        {
            **WIDE,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": (Gemma3TextConfig, {**WIDE, "num_hidden_layers": 6, "rope_parameters": BY_LAYER}),
    "phi3": (
        Phi3Config,
        {"rope_parameters": LONG, "original_max_position_embeddings": 2, "sliding_window": 100},
    ),
    # transformers reads no other context and width from GGUF
    "gpt2": (GPT2Config, {"n_inner": 256, "max_position_embeddings": 1024, "num_key_value_heads": 4}),
}
# fields of a configuration that say nothing of what is computed, or what others say
SILENT = [
    "dtype",
    "_name_or_path",
    "transformers_version",
    "initializer_range",
    "use_cache",
    "head_dim",
    "attention_dropout",
    "_attn_implementation_internal",
]
TEXTS = [
    "The 12345 quick brown foxes' dens weren't found: it's 3.14, isn't it?\n\n  Two  spaces\tand a tab.\r\n",
    "Grüße, 你好, مرحبا, \U0001f680\U0001f468\u200d\U0001f469, ½ x\u0301",
    " begins with a space<|im_start|>user\n<think>hm</think><|im_end|>",
    "HTTPServer2 camelCase SNAKE_CASE DON'T I'LL WE'VE ... --- !!!/\n//",
    "<s><turn>the end</s>\n in the<turn> \n\n and[INST] on [INST]\n",
    "",
]


DIFFERENT = {  # types of a file's tensors
    "token_embd": "Q4_1",
    "attn_q": "Q4_0",
    "attn_k": "Q5_0",
    "attn_v": "Q8_0",
    "attn_output": "Q5_1",
    "ffn_gate": "Q5_1",
    "ffn_up": "Q4_1",
    "ffn_down": "Q5_1",
}


def random_model(name: str) -> Any:
    torch.manual_seed(3)
    kind, options = MODELS[name]
    model = AutoModelForCausalLM.from_config(kind(**SHAPE | options)).eval()
    model.config.architectures = [type(model).__name__]
    for key, parameter in model.named_parameters():
        # numbers that 1 is added to and taken from again exactly
        if "norm" in key or ".ln_" in key or key.endswith("bias"):
            parameter.data = (torch.randn_like(parameter) * 64).round() / 256
    return model


def said(config: Any) -> dict[str, Any]:
    silent = {*SILENT, *FAMILIES[config.architectures[0]].field_names}
    return {key: value for key, value in config.to_dict().items() if key not in silent}


def from_source(path: Path) -> Any:
    """transformers' model with the configuration and the tensors of a source."""
    source = open_source(path)
    config = AutoConfig.for_model(**source.config, **TOKENS)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    facts = read_model_facts(source)
    weights = Weights(facts, source, torch.float32, CPU)
    model.load_state_dict({name: weights.tensor(name) for name in shapes_of(facts)})
    return model


@pytest.mark.parametrize("name", MODELS)
def test_configuration_and_tensors_are_those_of_the_model_that_was_converted(
    name: str, tmp_path: Path
) -> None:
    original = random_model(name)
    model = from_source(convert(original, tmp_path / "a.gguf"))
    assert said(model.config) == said(original.config)
    wanted = original.state_dict()
    assert model.state_dict().keys() == wanted.keys()
    for key, values in model.state_dict().items():
        assert torch.equal(values, wanted[key]), key
    ids = torch.arange(200)[None] % 500
    with torch.no_grad():
        assert torch.equal(model(ids).logits, original(ids).logits)


@pytest.mark.parametrize("kind", ["torch", *(["layers"] if library() is not None else [])])
@pytest.mark.parametrize("name", MODELS)
def test_a_file_is_served_with_the_tokens_of_the_model(
    name: str, kind: str, tmp_path: Path, agreement: Agreement
) -> None:
    original = random_model(name)
    if kind == "layers" and getattr(original.config, "num_experts_per_tok", None):
        pytest.skip("layers in C++ have no experts")
    original.generation_config.eos_token_id = None
    model = TinyModel(convert(original, tmp_path / "a.gguf"), original, agreement)
    requests = random_requests(6)
    model.check_all(requests, Serving(model.engine_of(kind)).run(requests))


@pytest.mark.skipif(library() is None, reason="wants a C++ compiler, and AVX2")
def test_parts_of_a_product_that_have_different_bits_keep_them_in_bytes(
    tmp_path: Path, agreement: Agreement
) -> None:
    """So does an embedding of 4 bits that is the head."""
    original = random_model("qwen3")
    plain = gguf.GGUFReader(convert(original, tmp_path / "plain.gguf"))
    kinds = {part: gguf.GGMLQuantizationType[kind] for part, kind in DIFFERENT.items()}
    more = {
        tensor.name: in_blocks(tensor.data, kinds[part])
        for tensor in plain.tensors
        if (part := tensor.name.removesuffix(".weight").rpartition(".")[2]) in kinds
    }
    assert len(more) == 1 + SHAPE["num_hidden_layers"] * (len(kinds) - 1)
    path = convert(original, tmp_path / "a.gguf", more)
    rounded = from_source(path)
    rounded.generation_config.eos_token_id = None
    model, requests = TinyModel(path, rounded, agreement), random_requests(6)
    settings = model.settings(dtype="float32")
    facts = facts_of(settings)
    weights = open_weights(settings, facts, for_layers=True)
    products = [describe(facts, weights, 64).head]
    for layer in take_layers(facts, weights):
        attention, fed = layer.attention, layer.feed_forward
        products += [attention.qkv, attention.output, fed.up, fed.down]
    assert {each.weight.dtype for each in products} == {torch.int8}
    assert all(each.minimum is not None for each in products)
    model.check_all(requests, Serving(model.layers_engine(dtype="float32")).run(requests))


@pytest.mark.parametrize("with_tiles", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_bfloat16_few_bits_are_kept_where_tiles_multiply_them(
    dtype: str, with_tiles: bool, tmp_path: Path
) -> None:
    original = random_model("qwen3")
    name = "blk.0.ffn_down.weight"
    plain = gguf.GGUFReader(convert(original, tmp_path / "plain.gguf"))
    (down,) = (tensor.data for tensor in plain.tensors if tensor.name == name)
    path = convert(original, tmp_path / "a.gguf", {name: in_blocks(down, gguf.GGMLQuantizationType.Q4_1)})
    settings = Settings(model=ModelSettings(str(path), dtype))
    facts = facts_of(settings)
    weights = open_weights(settings, facts, for_layers=True, with_tiles=with_tiles)
    kept = next(iter(take_layers(facts, weights))).feed_forward.down
    is_kept = with_tiles or dtype == "float32"
    assert kept.weight.dtype == (torch.uint8 if is_kept else weights.dtype)


def in_blocks(values: Any, kind: gguf.GGMLQuantizationType) -> Any:
    return gguf.quantize(np.array(values), kind).view(np.dtype(np.uint8, metadata={"ggml": kind}))


def test_a_file_whose_tensors_are_not_those_of_its_model_is_refused_by_their_names(tmp_path: Path) -> None:
    fewer = write(tmp_path / "fewer.gguf", LLAMA | byte_level())
    more = convert(random_model("qwen3"), tmp_path / "more.gguf", {"blk.1.attn_sinks.weight": np.ones(4)})
    for path, says in (
        (fewer, "the weights lack model.layers.0.input_layernorm.weight"),
        (more, "blk.1.attn_sinks.weight"),
    ):
        with pytest.raises(SettingsError, match=re.escape(says)) as refused:
            TorchEngine(Settings(model=ModelSettings(str(path), "float32")))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["llama_biases", "qwen2", "qwen3_moe_768", "gemma2", "phi3", "gpt2"])
def test_transformers_reads_the_same_tensors(name: str, tmp_path: Path) -> None:
    """It leaves out biases of Llama, and the scaling of rotary embeddings."""
    path = convert(random_model(name), tmp_path / "a.gguf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    source = open_source(path)
    weights = Weights(read_model_facts(source), source, torch.float32, CPU)
    for key, values in theirs.state_dict().items():
        if key != "lm_head.weight":
            assert torch.equal(values, weights.tensor(key)), key


def test_experts_of_an_architecture_that_has_none_are_refused_by_the_field(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    fields = {key.replace("llama.", "qwen2."): value for key, value in LLAMA.items()}
    write(path, fields | {"general.architecture": "qwen2", "qwen2.expert_count": 4} | byte_level())
    with pytest.raises(SettingsError, match=r"qwen2\.expert_count = 4: is not known"):
        TorchEngine(Settings(model=ModelSettings(str(path), "float32")))


@pytest.mark.parametrize("pre", [name for name, words in WORDS.items() if not words.single_digits])
def test_byte_level_tokens_are_those_of_transformers(pre: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", LLAMA | byte_level(pre))
    same_tokens(path, AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name).backend_tokenizer)


def published(name: str, theirs: dict[str, Any]) -> dict[str, Any]:
    """What transformers reads from GGUF, as the tokenizer.json of such models has it where that differs."""
    if name == "llama":
        spaces = [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]
        return theirs | {"pre_tokenizer": None, "normalizer": {"type": "Sequence", "normalizers": spaces}}
    if name == "phi3":
        tokens = theirs["added_tokens"]
        return theirs | {
            "added_tokens": [{**each, "rstrip": each["content"] in ("<turn>", "</s>")} for each in tokens]
        }
    return theirs


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "phi3"])
def test_sentence_piece_tokens_are_those_of_the_published_tokenizer(name: str, tmp_path: Path) -> None:
    architecture = name if name != "mistral" else "llama"
    own = {key.replace("llama.", f"{architecture}."): value for key, value in LLAMA.items()}
    pieces = sentence_piece(add_space_prefix=name != "gemma3")
    if name == "mistral":
        tokens = pieces["tokenizer.ggml.tokens"]
        tokens[tokens.index("<turn>")] = "[INST]"
    path = write(tmp_path / "a.gguf", own | {"general.architecture": architecture} | pieces)
    read = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name).backend_tokenizer
    same_tokens(path, Tokenizer.from_str(json.dumps(published(name, json.loads(read.to_str())))))


def same_tokens(path: Path, theirs: Tokenizer) -> None:
    ours = open_source(path).tokenizer()
    for text in [*TEXTS, Path(__file__).read_text()]:
        wanted = theirs.encode(text).ids
        assert ours.encode(text).ids == wanted, text
        decoded = theirs.decode(wanted, skip_special_tokens=False)
        assert ours.decode(wanted, skip_special_tokens=False) == decoded, text
