"""The processes of `coserving` that only train: ours, and PEFT's."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.common.finetuning_trainers import ADAPTER, SEED, PeftTrainer, random_examples
from benchmarks.common.work import clear_peak
from benchmarks.coserving.counts import Counts, Marks, counted
from benchmarks.coserving.specs import BATCH_SIZE, EXAMPLE_TOKENS, Model, Spec, endless_job, settings_of
from python_backends.engine.torch.training.lora_in_training import LoraInTraining
from python_backends.engine.torch.training.model import load_trained_model
from python_backends.finetuning.pack_memory import PackMemory
from python_backends.finetuning.trainer import Files, Trainer

# its adapter is in float32, as ours is
PEFT_SETTINGS: tuple[dict[str, bool], ...] = (
    {"batched": True, "float32_adapter": True},
    {"batched": False, "float32_adapter": True},
)


class Ours:
    """Trains as `submit --alone` does."""

    def __init__(self, model: Model, spec: Spec) -> None:
        torch.set_num_threads(spec.threads)
        settings = settings_of(model, spec)
        self._counts = counted(model.num_layers)
        self._directory = tempfile.TemporaryDirectory()
        adapter = LoraInTraining(load_trained_model(settings), ADAPTER, SEED)
        job, files = endless_job(Path(self._directory.name)), Files(ThreadPoolExecutor(1))
        self._trainer = Trainer(job, adapter, PackMemory(adapter), files)
        self._trainer.begin()

    def train(self, is_over: Callable[[], bool]) -> Marks:
        clear_peak()
        while not is_over():
            self._trainer.do(self._trainer.tile_tokens)
        return self._counts.take()


class Peft:
    """PEFT's modules with torch's autograd, with the settings that were faster in a trial."""

    def __init__(self, model: Model, spec: Spec) -> None:
        torch.set_num_threads(spec.threads)
        self._model = model
        self._examples = random_examples([EXAMPLE_TOKENS] * 64, 1.0)
        self._counts = Counts()
        self.chosen = min(PEFT_SETTINGS, key=self._second_step_s)
        self._trainer = self._made(self.chosen)

    def train(self, is_over: Callable[[], bool]) -> Marks:
        clear_peak()
        tokens = BATCH_SIZE * EXAMPLE_TOKENS
        self._counts.add(0, 0)
        while not is_over():
            self._trainer.train(self._examples, BATCH_SIZE, 1, lambda: None)
            self._counts.add(tokens, tokens)
        return self._counts.take()

    def _made(self, chosen: dict[str, bool]) -> PeftTrainer:
        dtype = getattr(torch, self._model.dtype)
        return PeftTrainer(AutoModelForCausalLM.from_pretrained(self._model.directory, dtype=dtype), **chosen)

    def _second_step_s(self, chosen: dict[str, bool]) -> float:
        clocks: list[float] = []
        self._made(chosen).train(self._examples, BATCH_SIZE, 2, lambda: clocks.append(time.perf_counter()))
        return clocks[1] - clocks[0]
