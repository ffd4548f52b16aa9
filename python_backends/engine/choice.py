"""By what a model is computed, and in which type, where the settings leave it open (`auto`).

The torch engine computes every model, on a CPU by layers in C++ where they know it. bfloat16, which halves
the bytes that a step reads, is taken if the checkpoint has it, and the processor multiplies it or layers
compute the model: these make it float32 in registers. Where it is not multiplied, a GGUF file is taken in
float32: layers read its few bits. Owns nothing and imports no engine's library: the launcher calls it before
it starts anything.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from python_backends.checkpoint.facts import stored_dtype
from python_backends.checkpoint.gguf.groups import KINDS as FEW_BITS
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError
from python_backends.engine.cpu.served import obstacle
from python_backends.engine.kinds import KINDS, kind_of
from python_backends.linux.processor import processor_flags
from python_backends.settings import Settings, SettingsError

AUTO, TORCH = "auto", "torch"
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
        settings = replace(settings, engine=replace(settings.engine, kind=TORCH))
        reasons.append(f"engine.kind = {TORCH}: {_by_what(settings, flags)}")
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


def _by_what(settings: Settings, flags: Collection[str]) -> str:
    """The torch engine computes."""
    if settings.model.device != "cpu":
        return "on a GPU"
    why = obstacle(settings, flags)
    return f"by torch's operators, without layers in C++: {why}" if why else "with layers in C++"


def _dtype(settings: Settings, flags: Collection[str]) -> tuple[str, str]:
    """And why."""
    if not kind_of(settings).has_weights:
        return "float32", f"the {settings.engine.kind} engine has no weights"
    stored = _stored(settings.model_directory)
    if stored not in HALF:
        return "float32", f"the checkpoint is of {stored}"
    if settings.model.device != "cpu":
        return "bfloat16", f"the checkpoint is of {stored}"
    if stored != "bfloat16":
        return "float32", f"the checkpoint is of {stored}, which bfloat16 would round"
    if found := next((flag for flag in MULTIPLIES_BFLOAT16 if flag in flags), None):
        return "bfloat16", f"the checkpoint's, and this processor multiplies it ({found})"
    if obstacle(settings, flags):
        return "float32", "this processor does not multiply bfloat16"
    if settings.model.weights == "same" and _has_few_bits(settings.model_directory):
        return "float32", "the file's weights stay in their few bits"
    return "bfloat16", "the checkpoint's, which becomes float32 where it is multiplied"


def _has_few_bits(directory: Path) -> bool:
    """Whether most weights are stored in bits that layers keep in a model of float32."""
    sizes = [(prod(each.shape), each.dtype in FEW_BITS) for each in open_source(directory).tensors.values()]
    return 2 * sum(size for size, few in sizes if few) > sum(size for size, _ in sizes)


def _stored(directory: Path) -> str:
    """The type of the weights; float32 if the files can't be read."""
    try:
        return stored_dtype(open_source(directory))
    except CheckpointError:
        return "float32"
