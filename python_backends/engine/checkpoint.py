"""A Hugging Face checkpoint directory: may it be served, how much fits, which weights are they, and loading it with transformers.

Owns nothing; refuses with a SettingsError that names what is wrong. Called once, by the torch engine at its start.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from python_backends.config import Settings, SettingsError
from python_backends.engine.kv_cache import BlockShape
from python_backends.request import ModelLimits

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those whose angles don't depend on the length of the sequence
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RETENTION = 2  # blocks for finished prefixes: as many again as all slots can use


def read_config(settings: Settings) -> Any:
    """transformers' configuration of the checkpoint, if this engine computes its model. Raises SettingsError."""
    directory = settings.model_directory
    if not (directory / "config.json").is_file():
        raise SettingsError(f"model.directory = {str(directory)!r}: there is no config.json")
    config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=settings.model.trust_remote_code)
    _check_architecture(config)
    return config


def load_model(settings: Settings, config: Any) -> Any:
    """transformers' causal language model, in evaluation mode, on the device."""
    logging.disable_progress_bar()  # it would fill the instance's log
    model = AutoModelForCausalLM.from_pretrained(
        settings.model_directory,
        config=config,
        dtype=DTYPES[settings.model.dtype],
        local_files_only=True,
        trust_remote_code=settings.model.trust_remote_code,
    )
    return model.eval().to(settings.model.device)


def block_shape(settings: Settings, config: Any) -> BlockShape:
    return BlockShape(
        num_layers=config.num_hidden_layers,
        block_tokens=settings.engine.block_tokens,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        dtype=DTYPES[settings.model.dtype],
    )


def model_limits(settings: Settings, config: Any) -> ModelLimits:
    """What can be taken. Raises SettingsError if not even one sequence of the wanted length fits."""
    wanted, size = settings.model.max_model_tokens, settings.engine.block_tokens
    if wanted > config.max_position_embeddings:
        most = config.max_position_embeddings
        raise SettingsError(f"model.max_model_tokens = {wanted}: the checkpoint was made for at most {most}")
    max_tokens = wanted or config.max_position_embeddings
    num_blocks = _num_blocks(settings, block_shape(settings, config), -(-max_tokens // size))
    if wanted > num_blocks * size:
        raise SettingsError(f"model.max_model_tokens = {wanted}: only {num_blocks * size} tokens fit engine.kv_memory_gib")
    return ModelLimits(
        max_model_tokens=min(max_tokens, num_blocks * size),
        vocab_size=config.vocab_size,
        num_slots=settings.engine.slots,
        num_blocks=num_blocks,
        block_tokens=size,
        fingerprint=fingerprint(settings),
    )


def fingerprint(settings: Settings) -> str:
    """Which weights and settings make the tokens: 16 hexadecimal digits over names and sizes of the weight files and config.json."""
    directory = settings.model_directory
    parts = [settings.model.dtype, settings.model.device.partition(":")[0], (directory / "config.json").read_text()]
    parts += [f"{path.name} {path.stat().st_size}" for path in _weight_files(directory)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _num_blocks(settings: Settings, shape: BlockShape, blocks_a_slot: int) -> int:
    if settings.engine.kv_blocks:
        return settings.engine.kv_blocks
    fit = int(settings.engine.kv_memory_gib * 2**30) // shape.num_bytes
    if fit == 0:
        raise SettingsError(f"engine.kv_memory_gib = {settings.engine.kv_memory_gib}: one block takes {shape.num_bytes} bytes")
    return min(fit, RETENTION * settings.engine.slots * blocks_a_slot)


def _check_architecture(config: Any) -> None:
    architecture = (config.architectures or ["none"])[0]
    if architecture not in ARCHITECTURES:
        raise SettingsError(f"architecture {architecture}: this engine computes {', '.join(ARCHITECTURES)}")
    rope = config.rope_parameters["rope_type"]
    if rope not in ROPE_TYPES:
        raise SettingsError(f"rope_type {rope}: this engine computes {', '.join(ROPE_TYPES)}")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise SettingsError(f"architecture {architecture}: sliding window attention is not computed by this engine")
    if config.hidden_act != "silu":
        raise SettingsError(f"hidden_act {config.hidden_act}: this engine computes silu")


def _weight_files(directory: Path) -> list[Path]:
    return sorted([*directory.glob("*.safetensors"), *directory.glob("*.bin")])
