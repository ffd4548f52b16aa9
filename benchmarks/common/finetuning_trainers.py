"""The two trainers that `finetuning_memory.py` and `finetuning_speed.py` compare, on the same model, adapter
and mini-batches: ours as `submit --alone` runs it, and PEFT's modules with torch's autograd and AdamW.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.models import SHAPES, VOCABULARY
from commands.finetune.alone import AtOnce
from python_backends.engine.torch.training.lora_in_training import LoraInTraining
from python_backends.engine.torch.training.model import trained_model
from python_backends.finetuning import jobs
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.pack_memory import PackMemory
from python_backends.finetuning.packs import mini_batch, packed
from python_backends.finetuning.trainer import CLIP, Files, Trainer
from python_backends.nouns.training import NO_LABEL, AdapterShape, Keep
from tests.support.model_source import read_from

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK, ALPHA = 16, 32
ADAPTER = AdapterShape(RANK, ALPHA, MODULES)
LEARNING_RATE, SEED, MAX_TOKENS = 1e-4, 1, 4096
WIDTHS: dict[str, dict[str, int]] = {
    **SHAPES,
    "8B": {  # of Llama-3.1-8B
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
    },
}

Watch = Callable[[], None]  # called after every step


def build_model(shape: str, dtype: str, num_layers: int = 0, vocabulary: int = VOCABULARY) -> Any:
    """transformers' Qwen2 with random weights; all layers of the shape unless `num_layers` says how many."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    widths = dict(WIDTHS[shape])
    widths["num_hidden_layers"] = num_layers or widths["num_hidden_layers"]
    config = Qwen2Config(
        **widths,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        max_position_embeddings=MAX_TOKENS,
        use_cache=False,
    )
    config.architectures = ["Qwen2ForCausalLM"]
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        return Qwen2ForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)


def random_examples(lengths: Sequence[int], learned: float, vocabulary: int = VOCABULARY) -> list[Example]:
    """Of random ids; the last `learned` of each is learned, a share."""
    generator = np.random.default_rng(SEED)
    return [
        Example(
            generator.integers(0, vocabulary, length).astype(np.int32),
            np.arange(length) >= length * (1 - learned),
        )
        for length in lengths
    ]


def make_job(directory: Path, examples: list[Example], batch_size: int, steps: int) -> jobs.Job:
    fields = {
        "model": "random",
        "hyperparameters": {"batch_size": batch_size},
        "seed": SEED,
        "gapless": {
            "suffix": "benchmark",
            "rank": RANK,
            "alpha": ALPHA,
            "targets": list(MODULES),
            "learning_rate": LEARNING_RATE,
            "steps": steps,
        },
    }
    return jobs.create(directory, examples, fields)


class OurTrainer:
    """Of transformers' `model`."""

    def __init__(self, model: Any, keep: Keep = Keep.PRODUCTS, pack_tokens: int = 1024) -> None:
        self._adapter = LoraInTraining(trained_model(*read_from(model), MAX_TOKENS), ADAPTER, SEED)
        self._memory = PackMemory(self._adapter, pack_tokens=pack_tokens, keeps=[keep])

    def train(self, examples: list[Example], batch_size: int, steps: int, watch: Watch) -> None:
        """A new job of `steps`, which goes on with the adapter as it is."""
        with tempfile.TemporaryDirectory() as directory:
            job = make_job(Path(directory), examples, batch_size, steps)
            Trainer(job, self._adapter, self._memory, Files(AtOnce()), lambda progress: watch()).run()


class PeftTrainer:
    """`batched`: the sequences of a mini-batch at once, padded to the longest; else one after the other."""

    def __init__(
        self, model: Any, checkpointing: bool = False, batched: bool = True, float32_adapter: bool = False
    ) -> None:
        self.model = adapted(model, checkpointing, float32_adapter)
        self._batched = batched
        self._weights = [each for each in self.model.parameters() if each.requires_grad]
        self._optimiser = torch.optim.AdamW(self._weights, lr=LEARNING_RATE, weight_decay=0.0)

    def train(self, examples: list[Example], batch_size: int, steps: int, watch: Watch) -> None:
        for step in range(steps):
            self._step([examples[i] for i in mini_batch(len(examples), batch_size, SEED, step)])
            watch()

    def _step(self, examples: list[Example]) -> None:
        num_labels = packed(examples).num_labels
        for part in [examples] if self._batched else [[each] for each in examples]:
            device = self._weights[0].device
            tokens, labels, mask = padded(part)
            mask = None if mask is None else mask.to(device)
            logits = self.model(input_ids=tokens.to(device), attention_mask=mask).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(),
                labels.flatten().to(device),
                ignore_index=NO_LABEL,
                reduction="sum",
            )
            (loss / num_labels).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._weights, CLIP)
        self._optimiser.step()
        self._optimiser.zero_grad()


def adapted(model: Any, checkpointing: bool, float32_adapter: bool = False) -> Any:
    """PEFT's model around transformers'; the adapter in the model's dtype, or in float32 as PEFT has it."""
    import peft

    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(MODULES))
    found = peft.get_peft_model(model, config, autocast_adapter_dtype=float32_adapter).train()
    if checkpointing:
        found.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        found.enable_input_require_grads()
    return found


def padded(examples: list[Example]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens and labels [sequences, tokens], and which are no padding; None where none is."""
    packs = [packed([each]) for each in examples]
    longest = max(len(pack.tokens) for pack in packs)
    tokens, labels = np.zeros((len(packs), longest), np.int64), np.full((len(packs), longest), NO_LABEL)
    for row, pack in enumerate(packs):
        tokens[row, : len(pack.tokens)], labels[row, : len(pack.labels)] = pack.tokens, pack.labels
    lengths = np.array([len(pack.tokens) for pack in packs])
    mask = torch.from_numpy((np.arange(longest) < lengths[:, None]).astype(np.int64))
    return torch.from_numpy(tokens), torch.from_numpy(labels), None if bool(mask.all()) else mask
