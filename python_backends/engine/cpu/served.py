"""What the layers compute: by the settings and the checkpoint's facts, before any weight is read.

Owns nothing and imports no library: the launcher asks before it starts anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection

from python_backends.checkpoint.model_facts import ModelFacts, read_model_facts
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError
from python_backends.engine.cpu.library import is_kept, lacking
from python_backends.linux.processor import processor_flags
from python_backends.settings import Settings

BLOCK_TOKENS = 32  # attention.h
PANEL = 32  # panels.h


def obstacle(settings: Settings, flags: Collection[str] | None = None) -> str:
    """Why the layers don't compute the model of the settings here; "": they do.
    `flags`: of the processor; None: of this one.
    """
    if why := _of_settings(settings):
        return why
    flags = processor_flags() if flags is None else flags
    if missing := lacking(flags):
        return f"the processor has no {missing}"
    if not is_kept() and shutil.which(os.environ.get("CXX", "g++")) is None:
        return "there is no C++ compiler: apt-get install g++ brings one"
    try:
        return _of_model(read_model_facts(open_source(settings.model_directory)))
    except CheckpointError as error:  # the engine will say it, too
        return str(error)


def _of_settings(settings: Settings) -> str:
    if settings.model.device != "cpu":
        return f"model.device = {settings.model.device}"
    if settings.engine.block_tokens != BLOCK_TOKENS:
        return f"engine.block_tokens = {settings.engine.block_tokens}: they take {BLOCK_TOKENS}"
    if settings.engine.cpp_layers == "off":
        return "engine.cpp_layers = off"
    if settings.engine.cuda_graphs != "auto":
        return f"engine.cuda_graphs = {settings.engine.cuda_graphs}"
    return ""


def _of_model(facts: ModelFacts) -> str:
    widths = {
        "hidden_size": facts.hidden_size,
        "intermediate_size": facts.intermediate_size,
        "width of queries": facts.num_heads * facts.head_dim,
        "width of queries, keys and values": (facts.num_heads + 2 * facts.num_kv_heads) * facts.head_dim,
    }
    unfit = [f"{name} = {width}" for name, width in widths.items() if width % PANEL]
    reasons = {
        "mixtures of experts": facts.experts is not None,
        f"{', '.join(unfit)}: no multiple of {PANEL}": bool(unfit),
        "more than 32 query heads for a KV head": facts.num_heads // facts.num_kv_heads > PANEL,
    }
    return next((f"they don't compute {reason}" for reason, holds in reasons.items() if holds), "")
