"""A fault of OpenVINO's own layers that ends the process while it compiles them, and where it would strike:
what would do so is not tried.

OpenVINO 2026.4 divides by zero in its fusion of gated GELU (Gemma) in bfloat16, for one thread on a processor
with AMX. Owns nothing. Called by the OpenVINO engine.
"""

from __future__ import annotations

import os

from python_backends.checkpoint.kinds import Activation
from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.linux.processor import processor_flags
from python_backends.settings import Settings, SettingsError

AMX = {"amx_tile", "amx_bf16"}


def would_end_the_process(settings: Settings, facts: ModelFacts) -> bool:
    """Whether OpenVINO must not compile a feed-forward block of this model."""
    processors = len(os.sched_getaffinity(0))
    return (
        settings.model.dtype == "bfloat16"
        and min(settings.engine.threads or processors, processors) == 1
        and processor_flags() >= AMX
        and facts.family.gated
        and facts.activation in (Activation.GELU, Activation.GELU_TANH)
    )


def refuse_fault(settings: Settings, facts: ModelFacts) -> None:
    """Raises SettingsError where OpenVINO would end the process."""
    if would_end_the_process(settings, facts):
        raise SettingsError(
            "engine.threads = 1: on a processor with AMX, OpenVINO can't compile gated GELU in bfloat16 for"
            " one thread; give it two, or set model.dtype = 'float32' or engine.kind = 'torch'"
        )
