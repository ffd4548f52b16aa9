"""Configurations are read as transformers reads them: what a file says, what it leaves out, and the tensors
that follow from it.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from python_backends.checkpoint.families import FAMILIES
from python_backends.checkpoint.locating import located
from python_backends.checkpoint.model_facts import NEEDED, ModelFacts, read_model_facts
from python_backends.checkpoint.source import CheckpointError
from python_backends.checkpoint.tensor_names import shapes_of
from python_backends.engine.model.frequencies import frequencies
from tests.support.model_source import ModelSource, source_of
from tests.support.tiny_models import RELATIVES, TINY, WITH_IMAGES, build, class_of, configuration

NAMES = sorted(TINY | RELATIVES)
WITH_ROTARIES = [name for name in NAMES if not name.startswith("gpt2")]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 96}
BESIDE = {"original_max_position_embeddings": 8, "rope_scaling": YARN, "num_hidden_layers": 6}
SAID = {  # what old files say beside, or in place of, what transformers writes today
    "gemma": [{"hidden_act": "gelu"}],
    "gemma2": [{"num_hidden_layers": 5}],
    "gemma3": [
        {"rope_theta": 5e5, "rope_local_base_freq": 3e4, "rope_scaling": {"type": "linear", "factor": 8.0}},
        BESIDE,
    ],
    "gpt_neox": [{"rotary_pct": 0.5, "rotary_emb_base": 5000}],
    "llama_grouped": [
        {"rope_theta": 5e5},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_theta": 3e4},
        {"rope_scaling": YARN},
        BESIDE,
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.2}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 20, "truncate": False}},
        {"attention_bias": True, "mlp_bias": True},
    ],
    "olmo3": [{"rope_theta": 7e5, "rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, BESIDE],
    "phi": [{"partial_rotary_factor": 0.25, "rope_theta": 3e4}],
    "phi3": [
        {
            "rope_scaling": {
                "type": "su",
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 96,
            },
        }
    ],
    "qwen2": [{"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}],
    "stablelm": [{"partial_rotary_factor": 0.5}],
}


def read(config: dict[str, Any]) -> ModelFacts | str:
    """Or why they are refused."""
    try:
        return replace(read_model_facts(ModelSource(config)), end_ids=())  # those that a file names
    except CheckpointError as error:
        return str(error)


def test_rotary_parameters_that_are_null_are_those_of_the_family() -> None:
    config = config_of("cwm") | {"rope_parameters": None}
    assert read(config) == reference(config)


@pytest.mark.parametrize(("name", "theta"), [("gemma3", 1e6), ("olmo3", 5e5)])
def test_rotary_parameters_of_no_layer_type_are_refused_where_each_type_has_its_own(
    name: str, theta: float
) -> None:
    """Except what is computed without them, too."""
    config = config_of(name)
    del config["rope_parameters"]
    same = {"rope_type": "default", "rope_theta": theta}
    assert read(config | {"rope_parameters": same}) == read(config)
    for said in ({"rope_type": "linear", "factor": 8.0}, same | {"rope_theta": 7.0}):
        refused = str(read(config | {"rope_parameters": said}))
        assert refused.endswith("rope_parameters: must be by layer type, full_attention or sliding_attention")


def test_without_a_window_no_layer_of_cohere_2_has_positions_and_every_one_of_exaone_4() -> None:
    """As transformers' layers are written."""
    for name, rotary in (("cohere2", None), ("exaone4_full", 0)):
        facts = read_model_facts(ModelSource(config_of(name, sliding_window=None)))
        assert set(facts.rotaries) == {rotary}


@pytest.mark.parametrize(
    ("name", "said", "why"),
    [
        ("granite", {"attention_multiplier": 0}, "attention_multiplier = 0: must be another number"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar = 0: must be above 0"),
        ("gemma2", {"query_pre_attn_scalar": -4}, "query_pre_attn_scalar = -4: must be above 0"),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping = 0: must be another number"),
        ("gemma2", {"final_logit_softcapping": 0.0}, "final_logit_softcapping = 0: must be another number"),
        ("smollm3", {"no_rope_layers": True}, "no_rope_layers: must have a flag for each of 3 layers"),
        ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 0}, "must be at least 1"),
    ],
)
def test_numbers_with_which_nothing_can_be_computed_are_refused_by_name(
    name: str, said: dict[str, Any], why: str
) -> None:
    refused = read(config_of(name) | said)
    assert isinstance(refused, str)
    assert refused.endswith(why)


def reference(config: dict[str, Any]) -> ModelFacts | str:
    """Of what transformers makes of `config`, with all its defaults written out."""
    made = AutoConfig.for_model(**copy.deepcopy(config))
    return read(made.to_dict() | {"architectures": config["architectures"]})


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    config = configuration(name)
    architecture = class_of(name)._model_mapping[type(config)].__name__
    return json.loads(json.dumps(config.to_dict() | {"architectures": [architecture]})) | changes


def old_config(name: str, said: dict[str, Any]) -> dict[str, Any]:
    """With `said` in place of what transformers writes today."""
    config = config_of(name) | said
    if said:
        config.pop("layer_types", None)
    if any(field in name for field in ("rope", "rotary") for name in said):
        config.pop("rope_parameters", None)
    return config


@pytest.mark.parametrize("name", NAMES)
def test_what_a_file_leaves_out_is_what_transformers_takes(name: str) -> None:
    """Each field alone, and all at once."""
    config = config_of(name)
    assert isinstance(read(config), ModelFacts)
    names = FAMILIES[config["architectures"][0]].field_names
    sizes = {names.get(field, field) for field in NEEDED if field != "max_position_embeddings"}
    kept = sizes | {"intermediate_size", "architectures", "model_type"}
    optional = [field for field in config if field not in kept]
    for left_out in [*([field] for field in optional), optional]:
        if name == "exaone4_full" and "layer_types" in left_out:
            continue  # transformers divides by 0
        less = {key: value for key, value in config.items() if key not in left_out}
        assert read(less) == reference(less), left_out


@pytest.mark.parametrize("name", sorted(WITH_IMAGES))
def test_what_the_part_for_text_leaves_out_is_what_transformers_takes(name: str) -> None:
    config = config_of(name)
    assert isinstance(read(config), ModelFacts)
    kept = {*NEEDED, "intermediate_size", "model_type", "tie_word_embeddings"}
    optional = [field for field in config["text_config"] if field not in kept]
    for left_out in [*([field] for field in optional), optional]:
        less = {key: value for key, value in config["text_config"].items() if key not in left_out}
        assert read(config | {"text_config": less}) == reference(config | {"text_config": less}), left_out


def test_the_part_for_text_of_a_published_gemma_is_read_as_transformers_reads_it() -> None:
    """It names neither its heads nor the size of its vocabulary."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    architecture = "Gemma3ForConditionalGeneration"
    config = {"architectures": [architecture], "model_type": "gemma3", "text_config": text}
    ours = read(config)
    assert isinstance(ours, ModelFacts)
    assert (ours.vocab_size, ours.num_heads, ours.num_kv_heads, ours.head_dim) == (262_208, 8, 4, 256)
    assert ours == reference(config)


@pytest.mark.parametrize(
    ("name", "text_type"), [("gemma3_vision", "gemma3n_text"), ("mistral3", "ministral3")]
)
def test_another_text_in_a_model_that_takes_images_is_refused_by_name(name: str, text_type: str) -> None:
    config = config_of(name)
    config["text_config"]["model_type"] = text_type
    assert f"model_type = '{text_type}'" in str(read(config))


def test_a_file_without_a_part_for_text_says_it_beside_the_images() -> None:
    """Qwen2.5-VL's own."""
    config = config_of("qwen2_5_vl")
    text = config.pop("text_config")
    rotary = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "rope_theta": 5e5}
    flat = {name: each for name, each in text.items() if name != "rope_parameters"} | config | rotary
    ours = read(flat)
    assert isinstance(ours, ModelFacts)
    assert ours == reference(flat)


@pytest.mark.parametrize(("name", "said"), [(name, each) for name, given in SAID.items() for each in given])
def test_old_spellings_mean_what_they_mean_to_transformers(name: str, said: dict[str, Any]) -> None:
    config = old_config(name, said)
    ours, theirs = read(config), reference(config)
    assert isinstance(ours, ModelFacts)
    assert ours == theirs


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, {}) for name in WITH_ROTARIES),
        *((name, each) for name, given in SAID.items() for each in given),
    ],
)
def test_rotary_frequencies_are_transformers_to_the_last_bit(name: str, said: dict[str, Any]) -> None:
    config = old_config(name, said)
    facts = read_model_facts(ModelSource(config))
    with torch.device("meta"):
        layers = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    theirs = type(layers.base_model.rotary_emb)(config=layers.config)
    for rope in facts.ropes:
        prefix = f"{rope.kind}_" if rope.kind else ""
        assert torch.equal(frequencies(rope, 1), getattr(theirs, f"{prefix}original_inv_freq"))
        assert rope.scale == pytest.approx(getattr(theirs, f"{prefix}attention_scaling"))


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, (1536, 1536)),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 96}},
            (384, 384),
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 2.0,
                    "original_max_position_embeddings": 384,
                }
            },
            (768, 768),
        ),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, (384, 1536)),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, (384, 384)),
        ({}, (384, 384)),
    ],
)
def test_a_stretched_context_is_as_long_as_the_file_means(
    said: dict[str, Any], tokens: tuple[int, int]
) -> None:
    """By itself, and at most where a setting asks for more."""
    config = {name: each for name, each in config_of("llama_grouped").items() if name != "rope_parameters"}
    facts = read_model_facts(ModelSource(config | said))
    assert (facts.context, facts.longest) == tokens


@pytest.mark.parametrize(("said", "longest"), [(4096, 4096), (128, 384), (None, 384)])
def test_command_r_names_the_most_tokens_beside_a_shorter_context(said: int | None, longest: int) -> None:
    facts = read_model_facts(ModelSource(config_of("cohere", model_max_length=said)))
    assert (facts.context, facts.longest) == (384, longest)


@pytest.mark.parametrize("name", NAMES)
def test_the_tensors_of_a_model_are_those_of_transformers_module(name: str) -> None:
    model = build(name)
    source = source_of(model)
    expected = {key: tuple(each.shape) for key, each in model.state_dict().items()}
    assert shapes_of(read_model_facts(source)) == expected
    assert set(located(read_model_facts(source), source)) == set(expected)


def test_every_flag_for_a_bias_adds_the_tensors_that_transformers_has() -> None:
    for name in NAMES:
        config = config_of(name)
        for flag in [field for field in config if field.endswith("_bias")]:
            changed = config | {flag: not config[flag]}
            made = AutoConfig.for_model(**changed)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(made)
            expected = {key: tuple(each.shape) for key, each in model.state_dict().items()}
            assert shapes_of(read_model_facts(ModelSource(changed))) == expected, (name, flag)


def test_each_family_is_found_by_its_type_where_no_architecture_is_named() -> None:
    for name in NAMES:
        config = config_of(name)
        expected = config.pop("architectures")[0]
        assert read_model_facts(ModelSource(config)).architecture == expected
    alone = [family.model_type for family in FAMILIES.values() if not family.left_out]
    assert len(set(alone)) == len(alone)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"])
def test_sizes_that_no_file_leaves_out_must_be_there(field: str) -> None:
    config = config_of("llama_grouped")
    del config[field]
    with pytest.raises(CheckpointError, match=f"config.json: there is no {field}"):
        read_model_facts(ModelSource(config))
