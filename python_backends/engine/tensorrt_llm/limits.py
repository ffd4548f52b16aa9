"""What a checkpoint, the settings and TensorRT-LLM together can take, read from config.json alone.

TensorRT-LLM computes more architectures than the torch engine knows, so nothing of that one is used here.
Called by the TensorRT-LLM engine at its start.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from math import ceil
from pathlib import Path
from typing import Any

from python_backends.checkpoint.digests import fingerprint
from python_backends.checkpoint.facts import Facts, read_facts
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError, Source
from python_backends.engine.adapter_directory import CONFIG, MAX_RANK
from python_backends.nouns.request import NO_GUIDES, AdapterVersion, ModelLimits
from python_backends.settings import Settings, SettingsError

BYTES = {"float32": 4, "bfloat16": 2}
# TensorRT-LLM's names of the modules that adapters change
MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "up_proj": "mlp_gate",
    "down_proj": "mlp_4h_to_h",
}
TOGETHER = frozenset({"attn_q", "attn_k", "attn_v"})  # it has all of them, or none
# what its default sampler takes no notice of; the other one has these, as NVIDIA says
OTHER_SAMPLER = "TRTLLMSampler"
ONLY_THERE = ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "bad_words")
# SamplingParams.bad_token_ids; longer words only as text, for which it needs a tokenizer
MAX_BAD_WORD_TOKENS = 1


def model_limits(settings: Settings) -> ModelLimits:
    """Raises SettingsError."""
    source = open_source(settings.model_directory)
    try:
        return _limits(settings, source, read_facts(source))
    except CheckpointError as error:
        raise SettingsError(f"model.directory = {str(source.path)!r}: {error}") from error


def _limits(settings: Settings, source: Source, facts: Facts) -> ModelLimits:
    if not (source.path / "config.json").is_file():  # a GGUF file has a configuration, too
        raise SettingsError(f"model.directory = {str(source.path)!r}: there is no config.json")
    size = settings.engine.block_tokens
    num_blocks = settings.engine.kv_blocks or _num_blocks(settings, facts)
    declared = settings.model.max_model_tokens or _needed(
        facts.context, "max_position_embeddings", "model.max_model_tokens"
    )
    return ModelLimits(
        max_model_tokens=min(declared, num_blocks * size),
        vocab_size=_needed(facts.vocab_size, "vocab_size"),
        num_slots=settings.engine.slots,
        num_blocks=num_blocks,
        block_tokens=size,
        fingerprint=fingerprint(
            source, "tensorrt_llm", settings.model.dtype, settings.tensorrt_llm.arguments
        ),
        max_bad_word_tokens=MAX_BAD_WORD_TOKENS,
        unsupported=(
            *NO_GUIDES,
            *("logit_bias_ids", "logit_bias_values", "return_prompt_log_probs"),
            *(() if _has_the_other_sampler(settings) else ONLY_THERE),
        ),
        adapters=tuple(AdapterVersion(name) for name in adapter_paths(settings)),
    )


def more_arguments(settings: Settings) -> dict[str, Any]:
    """Of TensorRT-LLM's LLM, from `tensorrt_llm.arguments`. Raises SettingsError."""
    text = settings.tensorrt_llm.arguments
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"tensorrt_llm.arguments = {text!r}: must be JSON ({error})") from error
    if not isinstance(arguments, dict):
        raise SettingsError(f"tensorrt_llm.arguments = {text!r}: must be a JSON object")
    return arguments


def _has_the_other_sampler(settings: Settings) -> bool:
    return more_arguments(settings).get("sampler_type") == OTHER_SAMPLER


def adapter_paths(settings: Settings) -> dict[str, str]:
    """Path by name: the subdirectories of `adapters.directory`. Raises SettingsError."""
    directory = settings.adapters_directory
    if directory is None:
        return {}
    found = {path.parent.name: str(path.parent) for path in sorted(directory.glob(f"*/{CONFIG}"))}
    if not found:
        raise SettingsError(f"adapters.directory = {str(directory)!r}: there is no */{CONFIG}")
    return found


def largest_rank(adapters: Iterable[str]) -> int:
    """Of the adapters at these paths, as their configurations say. Raises SettingsError."""
    return max(_rank(Path(path) / CONFIG) for path in adapters)


def modules_of(adapters: Collection[str]) -> list[str]:
    """What the adapters at these paths change, in TensorRT-LLM's names. Empty for a single one, of which it
    looks itself. Raises SettingsError.
    """
    if len(adapters) == 1:
        return []
    found = set().union(*(_modules(Path(path) / CONFIG) for path in adapters))
    return sorted(found | TOGETHER if found & TOGETHER else found)


def _modules(path: Path) -> set[str]:
    targets = _read(path, "target_modules")
    if not isinstance(targets, list) or not targets:
        raise SettingsError(f"{path}: target_modules = {targets!r:.100}: must be a list of names")
    found = {MODULES.get(str(target).rpartition(".")[2], "") for target in targets}
    if "" in found:
        raise SettingsError(
            f"{path}: target_modules = {targets!r:.100}: where there are several adapters, must be of"
            f" {', '.join(MODULES)}"
        )
    return found


def _read(path: Path, name: str) -> Any:
    try:
        return json.loads(path.read_bytes())[name]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise SettingsError(f"{path}: {name} can't be read ({type(error).__name__}: {error})") from error


def _rank(path: Path) -> int:
    rank = _read(path, "r")
    if type(rank) is not int or not 1 <= rank <= MAX_RANK:
        raise SettingsError(f"{path}: r = {rank!r}: must be between 1 and {MAX_RANK}")
    return rank


def _num_blocks(settings: Settings, facts: Facts) -> int:
    """As many as fit in the memory of each GPU, which has a part of every block: whole heads. Where GPUs
    outnumber them, several GPUs have the same ones.
    """
    hint = "engine.kv_blocks"
    heads = ceil(
        _needed(facts.num_kv_heads, "num_attention_heads", hint) / settings.tensorrt_llm.tensor_parallelism
    )
    dim = _needed(facts.head_dim, "hidden_size", hint)
    values = 2 * _needed(facts.num_layers, "num_hidden_layers", hint) * heads * dim
    num_bytes = values * BYTES[settings.model.dtype] * settings.engine.block_tokens
    fit = settings.engine.kv_bytes // num_bytes
    if fit == 0:
        raise SettingsError(
            f"engine.kv_memory_gib = {settings.engine.kv_memory_gib}: one block takes {num_bytes} bytes"
        )
    return fit


def _needed(value: int, name: str, setting: str = "") -> int:
    if not value:
        raise SettingsError(f"config.json has no {name}" + (f": set {setting}" if setting else ""))
    return value
