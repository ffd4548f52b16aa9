"""Which engine computes a model, and in which type, where the settings leave it open (`auto`).

On a CPU the torch engine is the fastest where it has layers in C++ (docs/measured.md); elsewhere the OpenVINO
engine is, which computes all families but those with soft-capped scores or experts. bfloat16 is taken if the
checkpoint has it and the processor multiplies it: it halves the bytes that a step reads. Owns nothing and
imports no engine's library: the launcher calls it before it starts anything.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from python_backends.checkpoint.facts import read_facts, stored_dtype
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError
from python_backends.engine.cpu.served import obstacle
from python_backends.engine.kinds import KINDS, kind_of
from python_backends.engine.openvino import BLOCK_TOKENS as OPENVINO_BLOCK_TOKENS
from python_backends.linux.processor import processor_flags
from python_backends.settings import Settings, SettingsError

AUTO = "auto"
MULTIPLIES_BFLOAT16 = ("amx_bf16", "avx512_bf16")
HALF = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Choice:
    """`settings` without `auto` in engine.kind and model.dtype; `reasons` says why, for the log."""

    settings: Settings
    reasons: tuple[str, ...]


def choose(settings: Settings, flags: Collection[str] | None = None) -> Choice:
    """`flags`: of the processor; None: of this one. What the settings name stays as it is.

    Raises SettingsError if there are to be adapters and the engine named has none.
    """
    reasons = []
    flags = processor_flags() if flags is None else flags
    if settings.engine.kind == AUTO:
        kind, why = _kind(settings, flags)
        settings = replace(settings, engine=replace(settings.engine, kind=kind))
        reasons.append(f"engine.kind = {kind}: {why}")
    if settings.adapters.directory and not kind_of(settings).takes_adapters:
        raise SettingsError(
            f"adapters.directory = {settings.adapters.directory!r}: engine.kind = {settings.engine.kind}"
            f" has no adapters; {', '.join(name for name, kind in KINDS.items() if kind.takes_adapters)} have"
        )
    if settings.model.dtype == AUTO:
        dtype, why = _dtype(settings, flags)
        settings = replace(settings, model=replace(settings.model, dtype=dtype))
        reasons.append(f"model.dtype = {dtype}: {why}")
    return Choice(settings, tuple(reasons))


def _kind(settings: Settings, flags: Collection[str]) -> tuple[str, str]:
    """And why."""
    if settings.model.device != "cpu":
        return "torch", "it computes on a GPU"
    if settings.adapters.directory:
        return "torch", "OpenVINO has no adapters (adapters.directory)"
    if lacking := _lacking_in_openvino(settings.model_directory):
        return "torch", lacking
    if settings.engine.block_tokens != OPENVINO_BLOCK_TOKENS:
        return "torch", f"openvino takes engine.block_tokens = {OPENVINO_BLOCK_TOKENS}"
    if find_spec("openvino") is None:
        return "torch", "OpenVINO is not installed"
    if why := _layers_obstacle(settings, flags):
        return "openvino", f"the faster one without layers of ours: {why}"
    return "torch", "the fastest one on a CPU, with layers in C++"


def _layers_obstacle(settings: Settings, flags: Collection[str]) -> str:
    """Why they don't compute the model; "": they do, in the type that the settings name or leave open."""
    as_torch = replace(settings, engine=replace(settings.engine, kind="torch"))
    dtype = _dtype(as_torch, flags)[0] if settings.model.dtype == AUTO else settings.model.dtype
    return obstacle(replace(as_torch, model=replace(settings.model, dtype=dtype)), flags)


def _dtype(settings: Settings, flags: Collection[str]) -> tuple[str, str]:
    """And why."""
    if not kind_of(settings).has_weights:
        return "float32", f"the {settings.engine.kind} engine has no weights"
    stored = _stored(settings.model_directory)
    if stored not in HALF:
        return "float32", f"the checkpoint is of {stored}"
    if settings.model.device != "cpu":
        return "bfloat16", f"the checkpoint is of {stored}"
    found = next((flag for flag in MULTIPLIES_BFLOAT16 if flag in flags), None)
    if found is None:
        return "float32", "this processor does not multiply bfloat16"
    if stored != "bfloat16":
        return "float32", f"the checkpoint is of {stored}, which bfloat16 would round"
    return "bfloat16", f"the checkpoint's, and this processor multiplies it ({found})"


def _lacking_in_openvino(directory: Path) -> str:
    """Why it can't compute the checkpoint. "" if it can, or if the files can't be read: the engine will say
    what is wrong with them.
    """
    try:
        facts = read_facts(open_source(directory))
    except CheckpointError:
        return ""
    if facts.has_experts:
        return "the OpenVINO engine has no mixtures of experts"
    return "OpenVINO's attention has no soft-capped scores" if facts.has_softcap else ""


def _stored(directory: Path) -> str:
    """The type of the weights; float32 if the files can't be read."""
    try:
        return stored_dtype(open_source(directory))
    except CheckpointError:
        return "float32"
