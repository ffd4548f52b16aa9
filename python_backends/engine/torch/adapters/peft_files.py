"""Reads and writes the directory of an adapter as PEFT has it: adapter_config.json and
adapter_model.safetensors.

Whatever would change the model's answers and is not computed here is refused by name, never left out.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor

from python_backends.checkpoint.families import FAMILIES
from python_backends.engine.adapter_directory import CONFIG, WEIGHTS
from python_backends.engine.protocol import BadAdapterError
from python_backends.engine.torch.adapters.path_patterns import PatternError, compiled, is_name
from python_backends.linux.regular_files import open_regular, read_regular
from python_backends.nouns.training import AdapterShape

MAX_CONFIG_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 24  # of the names and shapes of all tensors
MOST_PATTERNS, MOST_PATTERN_CHARACTERS = 4096, 4000
LARGEST = sys.float_info.max  # of a number in the configuration
# fields of the configuration that are read here, or change nothing once the adapter is trained
KNOWN = frozenset(
    (
        *("alpha_pattern", "lora_alpha", "r", "rank_pattern", "target_modules", "use_rslora"),
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_type", "peft_version"),
        *("revision", "task_type", "exclude_modules", "layers_pattern", "layers_to_transform"),
        *("lora_dropout", "init_lora_weights", "megatron_core", "ensure_weight_tying"),
        *("corda_config", "eva_config", "loftq_config", "lora_ga_config", "velora_config"),
        *("qalora_group_size", "runtime_config", "fan_in_fan_out"),  # PEFT sets the last one by the module
    )
)
KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "use_rslora": (bool, "true or false"),
    "target_modules": ((list, str), "a list of strings, or a string"),
    "rank_pattern": (dict, "a JSON object"),
    "alpha_pattern": (dict, "a JSON object"),
}
NEUTRAL = {"bias": "none"}  # of the other fields: what is as good as nothing
# the others change the weights of the model that the adapter is made for
INITIALISATIONS = (True, False, None, "gaussian", "orthogonal", "eva")
# what keys begin with where the model's own weights are stored [in, out]
INPUTS_FIRST = tuple(
    f"base_model.model.{each.body}.{each.layers}." for each in FAMILIES.values() if each.inputs_first
)


@dataclass(frozen=True, slots=True, eq=False)
class PeftAdapter:
    """What a directory has, checked as far as that needs no model."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    digest: str  # of its content: 32 hexadecimal digits

    def rank(self, module: str) -> int:
        """Of the module with this path in the base model."""
        return int(self._of_module("rank_pattern", "r", module))

    def scale(self, module: str) -> float:
        """What B·A is multiplied with: alpha / rank, or alpha / √rank (rsLoRA)."""
        rank, alpha = self.rank(module), float(self._of_module("alpha_pattern", "lora_alpha", module))
        return alpha / math.sqrt(rank) if self.config.get("use_rslora") else alpha / rank

    def _of_module(self, patterns: str, field: str, module: str) -> Any:
        """As PEFT chooses: by the first pattern that the end of the path matches."""
        for pattern, value in (self.config.get(patterns) or {}).items():
            if compiled(pattern)(module):
                return value
        return self.config[field]


def read(directory: Path, root: Path, most_bytes: int) -> PeftAdapter:
    """Raises BadAdapterError. Nothing outside of `root` is read, wherever links lead, and no weights of more
    than `most_bytes`.
    """
    written = _content(directory / CONFIG, root, MAX_CONFIG_BYTES, read_regular)
    config = _checked(written)
    content = _content(directory / WEIGHTS, root, most_bytes, _read_weights)
    try:
        tensors = load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise BadAdapterError(f"{WEIGHTS}: {error}") from error
    for key, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.float().isfinite().all():
            raise BadAdapterError(f"{WEIGHTS}: {key}: all values must be finite numbers of a float type")
    _check_targets(config, tensors)
    digest = hashlib.blake2b(len(written).to_bytes(8, "little") + written + content, digest_size=16)
    return PeftAdapter(config, tensors, digest.hexdigest())


def write(
    directory: Path, weights: Mapping[str, NDArray[np.float32]], shape: AdapterShape, base_model: str
) -> None:
    """Writes an adapter of all layers to `directory`, which exists. `weights` are named and shaped as PEFT
    has them, and scaled by nothing.
    """
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": shape.rank,
        "lora_alpha": shape.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(shape.modules),
        "bias": "none",
        "fan_in_fan_out": next(iter(weights)).startswith(INPUTS_FIRST),
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    (directory / WEIGHTS).write_bytes(save(dict(weights), {"format": "pt"}))
    (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def _content(path: Path, root: Path, most_bytes: int, read_file: Callable[[Path, int], bytes]) -> bytes:
    if path.name == WEIGHTS and not path.exists() and (path.parent / "adapter_model.bin").exists():
        raise BadAdapterError("adapter_model.bin: only adapter_model.safetensors is read")
    try:
        where = path.resolve(strict=True)
        if not where.is_relative_to(root.resolve()):
            raise BadAdapterError(
                f"{path.name}: it leads out of {root}, where links must stay: copy the adapter into it,"
                " mount its directory there (mount --bind), or set adapters.directory to one that has both"
            )
        return read_file(where, most_bytes)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise BadAdapterError(f"{path.name}: {error}") from error


def _read_weights(path: Path, most_bytes: int) -> bytes:
    """The size is checked with the header of the file before the file is read: a file with holes has no end
    to speak of. Raises OSError and ValueError.
    """
    with open_regular(path, most_bytes) as file:
        size = os.fstat(file.fileno()).st_size
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > min(size - 8, MAX_HEADER_BYTES):
            raise ValueError(f"its header would have {header_bytes} bytes: no safetensors")
        expected = 8 + header_bytes + _end_of_tensors(file.read(header_bytes))
        if size != expected:
            raise ValueError(f"it has {size} bytes: must have {expected}, as its header says")
        file.seek(0)
        return file.read(size)


def _end_of_tensors(header: bytes) -> int:
    """Where the last one ends."""
    try:
        values = json.loads(header)
        places = [values[key]["data_offsets"][1] for key in values if key != "__metadata__"]
        return int(max(places, default=0))
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ValueError(f"its header is none of safetensors ({type(error).__name__})") from error


def _checked(written: bytes) -> dict[str, Any]:
    try:
        config = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise BadAdapterError(f"{CONFIG}: must be JSON ({error})") from error
    if not isinstance(config, dict):
        raise BadAdapterError(f"{CONFIG}: must be a JSON object")
    if config.get("peft_type") != "LORA" or config.get("task_type") not in ("CAUSAL_LM", None):
        found = f"{config.get('peft_type')!r}, task_type = {config.get('task_type')!r}"
        raise BadAdapterError(f"peft_type = {found}: must be 'LORA' and 'CAUSAL_LM'")
    for name, value in config.items():
        if name not in KNOWN and value and value != NEUTRAL.get(name):
            raise BadAdapterError(f"{name} = {value!r:.100}: not supported, must be absent")
    if config.get("init_lora_weights") not in INITIALISATIONS:
        raise BadAdapterError(
            f"init_lora_weights = {config['init_lora_weights']!r:.100}: it changes the weights of the model;"
            " convert the adapter with PEFT when it is saved"
        )
    _check_kinds(config)
    _check_numbers(config)
    return config


def _check_kinds(config: dict[str, Any]) -> None:
    """Of what is read here. A text such as "false" would count as true."""
    for name, (kinds, allowed) in KINDS.items():
        value = config.get(name)
        if value and not isinstance(value, kinds):
            raise BadAdapterError(f"{name} = {value!r:.100}: must be {allowed}")
    for target in config["target_modules"] if isinstance(config.get("target_modules"), list) else ():
        if not isinstance(target, str):
            raise BadAdapterError(f"target_modules: {target!r:.100}: must be a string")


def _check_numbers(config: dict[str, Any]) -> None:
    for field, patterns in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")):
        by_pattern = config.get(patterns) or {}
        least = 1 if field == "r" else -LARGEST
        for name, value in ((field, config.get(field)), *by_pattern.items()):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not least <= value <= LARGEST or (least == 1 and value % 1):
                allowed = "a whole number of at least 1" if least == 1 else "a finite number"
                raise BadAdapterError(f"{name} = {value!r:.100}: must be {allowed}")
        _check_patterns(patterns, by_pattern)


def _check_patterns(name: str, patterns: dict[str, Any]) -> None:
    long = sum(len(pattern) for pattern in patterns if not is_name(pattern))
    if len(patterns) > MOST_PATTERNS or long > MOST_PATTERN_CHARACTERS:
        raise BadAdapterError(
            f"{name}: {len(patterns)} patterns, {long} characters in those that are no names: must be at most"
            f" {MOST_PATTERNS} and {MOST_PATTERN_CHARACTERS}"
        )
    for pattern in patterns:
        try:
            compiled(pattern)
        except PatternError as error:
            raise BadAdapterError(f"{name}: {pattern!r:.100}: {error}") from error


def _check_targets(config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """A module that the configuration names has tensors."""
    targets = config.get("target_modules")
    modules = {key.rsplit(".lora_", 1)[0] for key in tensors}
    if not modules:
        raise BadAdapterError(f"{WEIGHTS}: it has no tensors")
    for target in targets if isinstance(targets, list) else ():
        if not any(module.endswith(f".{target}") for module in modules):
            raise BadAdapterError(f"target_modules: {target!r:.100}: {WEIGHTS} has no tensors of it")
