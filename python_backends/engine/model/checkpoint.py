"""A Hugging Face checkpoint directory: whether it can be served, how much fits, a fingerprint of its weights,
and loading it with transformers.

Owns nothing; refuses with a SettingsError that names what is wrong. Called once, by the torch engine at its
start.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from python_backends.checkpoint.digests import fingerprint
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError
from python_backends.engine.kv.kv_cache import BlockShape
from python_backends.engine.kv.padding import ROW_MULTIPLE, WITH_TILES
from python_backends.engine.model.families import (
    ACTIVATIONS,
    FAMILIES,
    family_of,
    head_dim,
    layer_types,
    num_kv_heads,
    rope_parameters,
)
from python_backends.engine.model.straight import load_straight
from python_backends.engine.model.wholeness import refusal, refuse_parts, refused_file, unreadable
from python_backends.nouns.request import MAX_STOP_WORDS, ModelLimits
from python_backends.settings import Settings, SettingsError

# Rotary types whose angles don't depend on the request: "dynamic" changes beyond max_position_embeddings
# only, where nothing is served, and for "longrope" `weights.describe` chooses once.
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
LAYER_TYPES = ("full_attention", "sliding_attention")
CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RETENTION = 2  # blocks for finished prefixes: as many again as all slots can use


def read_config(settings: Settings) -> Any:
    """transformers' configuration of the checkpoint, if this engine
    computes its model. Raises SettingsError.
    """
    directory = settings.model_directory
    if not (directory / "config.json").is_file():
        raise refusal(directory, "there is no config.json")
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    # unknown model_type, values that contradict each other, and whatever else transformers raises
    except Exception as error:
        raise refusal(directory, f"config.json: {error}") from error
    _check_architecture(config)
    return config


def load_model(settings: Settings, config: Any, device: torch.device = CPU) -> Any:
    """transformers' causal language model, in evaluation mode, on `device`."""
    dtype = DTYPES[settings.model.dtype]
    if settings.model.random_weights:
        torch.manual_seed(0)  # every instance has the same ones
        with device:
            return AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False).eval()
    try:
        model = load_straight(settings.model_directory, config, dtype, device) if device != CPU else None
        return (_loaded_by_transformers(settings, config).to(device) if model is None else model).eval()
    except (SettingsError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever the readers of files raise
        raise unreadable(settings.model_directory, error) from error


def _loaded_by_transformers(settings: Settings, config: Any) -> Any:
    """In the host's memory. Raises SettingsError if it is not whole."""
    logging.disable_progress_bar()  # it would fill the instance's log
    model, loading = AutoModelForCausalLM.from_pretrained(
        settings.model_directory,
        config=config,
        dtype=DTYPES[settings.model.dtype],
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are refused by name
    )
    refuse_parts(settings.model_directory, loading)
    return model


def block_shape(settings: Settings, config: Any) -> BlockShape:
    return BlockShape(
        num_layers=config.num_hidden_layers,
        block_tokens=settings.engine.block_tokens,
        num_kv_heads=num_kv_heads(config),
        head_dim=head_dim(config),
        dtype=DTYPES[settings.model.dtype],
    )


def most_stop_ids(settings: Settings) -> int:
    """The most stop ids that a request may have: those that the door lets through,
    `end_id`, and what the checkpoint calls an end.
    """
    source = open_source(settings.model_directory)
    ends = [file.get("eos_token_id") for file in (source.config, source.generation)]
    count = sum(len(ids) if isinstance(ids, list) else 1 for ids in ends)
    return MAX_STOP_WORDS + count + 2  # end_id, and the end that the tokenizer names


def declared_tokens(settings: Settings, config: Any) -> int:
    """The longest sequence that settings and checkpoint allow, whatever fits in memory."""
    return int(settings.model.max_model_tokens or config.max_position_embeddings)


def model_limits(settings: Settings, config: Any, measured_blocks: int | None = None) -> ModelLimits:
    """What can be taken. `measured_blocks`: the number of KV blocks that fit the device; None: as the
    settings say.

    Raises SettingsError if not even one sequence of the wanted length fits.
    """
    wanted, size = settings.model.max_model_tokens, settings.engine.block_tokens
    if wanted > config.max_position_embeddings:
        most = config.max_position_embeddings
        raise SettingsError(f"model.max_model_tokens = {wanted}: the checkpoint was made for at most {most}")
    max_tokens = declared_tokens(settings, config)
    num_blocks = _num_blocks(settings, block_shape(settings, config), -(-max_tokens // size), measured_blocks)
    if wanted > num_blocks * size:
        where = "engine.kv_memory_gib" if measured_blocks is None else "what the device has free"
        raise SettingsError(f"model.max_model_tokens = {wanted}: only {num_blocks * size} tokens fit {where}")
    return ModelLimits(
        max_model_tokens=min(max_tokens, num_blocks * size),
        vocab_size=config.vocab_size,
        num_slots=settings.engine.slots,
        num_blocks=num_blocks,
        block_tokens=size,
        fingerprint=fingerprint_of(settings),
        row_multiple=ROW_MULTIPLE if settings.model.device == "cpu" else WITH_TILES,
    )


def one_block_limits(settings: Settings, config: Any) -> ModelLimits:
    """Of the wanted length whatever fits, before memory is measured."""
    blocks = -(-declared_tokens(settings, config) // settings.engine.block_tokens)
    return model_limits(settings, config, blocks).changed(num_blocks=1)


def fingerprint_of(settings: Settings) -> str:
    model = settings.model
    source = open_source(settings.model_directory)
    try:
        return fingerprint(source, model.dtype, model.weights, model.device.partition(":")[0])
    except CheckpointError as error:
        raise refused_file(source.path, error) from error


def _num_blocks(
    settings: Settings, shape: BlockShape, blocks_a_slot: int, measured_blocks: int | None
) -> int:
    if settings.engine.kv_blocks:
        return settings.engine.kv_blocks
    fit = settings.engine.kv_bytes // shape.num_bytes if measured_blocks is None else measured_blocks
    if fit == 0:
        raise SettingsError(
            f"engine.kv_memory_gib = {settings.engine.kv_memory_gib}: one block takes {shape.num_bytes} bytes"
        )
    return min(fit, RETENTION * settings.engine.slots * blocks_a_slot)


def _check_architecture(config: Any) -> None:
    architecture = (config.architectures or ["none"])[0]
    if architecture not in FAMILIES:
        raise SettingsError(f"architecture {architecture}: this engine computes {', '.join(FAMILIES)}")
    if getattr(config, "quantization_config", None):
        raise SettingsError(
            f"quantization_config of architecture {architecture}: this engine takes float weights only"
        )
    family = family_of(config)
    for parameters in rope_parameters(config).values():
        _check_value("rope_type", parameters["rope_type"], ROPE_TYPES)
    for kind in layer_types(config):
        _check_value("layer type", kind, LAYER_TYPES)
    _check_value(family.activation, getattr(config, family.activation), ACTIVATIONS)
    for field in family.refused:
        if getattr(config, field, None):
            raise SettingsError(f"{field} of architecture {architecture} is not computed by this engine")


def _check_value(name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise SettingsError(f"{name} {value}: this engine computes {', '.join(known)}")
