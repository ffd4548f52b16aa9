"""A trainer that kills itself, in a process of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from commands.finetune import alone
from python_backends.engine.torch.training import lora_in_training
from python_backends.engine.torch.training.pack_run import PackRun
from python_backends.finetuning import pack_memory, saved_states, trainer
from python_backends.finetuning.jobs import Job
from python_backends.settings import EngineSettings, ModelSettings, Settings


def _deadly(function: Any, count: int) -> Any:
    left = count

    def called(*arguments: Any) -> Any:
        nonlocal left
        result = function(*arguments)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return called


def train(model: Path, job: Path, when: str, count: int) -> None:
    """`when` is `backward` or `saved state` (after its weights are written, before it has a name): at the
    `count`-th of them.
    """
    if when == "backward":
        PackRun.backward = _deadly(PackRun.backward, count)  # type: ignore[method-assign]
    if when == "saved state":
        saved_states.save_file = _deadly(saved_states.save_file, count)  # type: ignore[attr-defined]
    trainer.SAVE_EVERY_S, pack_memory.PACK_TOKENS, lora_in_training.CPU_TILE_TOKENS = 0.0, 48, 48
    settings = Settings(
        model=ModelSettings(directory=str(model), dtype="float32"),
        engine=EngineSettings(threads=1),
    )
    alone.train(Job(job), settings)
