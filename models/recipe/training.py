"""Owns the training run: the model, its schedule, its checkpoints
and the export as a Hugging Face directory.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tqdm import tqdm
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .examples import IGNORED, Batch, ExampleStream
from .tokenizer import CONTEXT_LENGTH, TOKENIZER_CONFIG
from .velin import write_lexicon

FILE = "training.pt"
BATCHES_PER_STEP = 2
WARM_UP_STEPS = 100
DECAY_FROM = 0.65
SECONDS_BETWEEN_CHECKPOINTS = 60
# what a step counts at most: time in which the process stood still is no training
LONGEST_STEP_SECONDS = 10.0


@dataclass(frozen=True)
class Budget:
    """How long to train: a number of steps, or minutes of training, whichever is given."""

    steps: int | None
    minutes: float | None

    def progress(self, step: int, seconds: float) -> float:
        """The share of the budget that is used up, 0 to 1."""
        by_steps = step / self.steps if self.steps else 0.0
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(by_steps, by_time))


@dataclass
class Position:
    """Where the run is: steps done, seconds trained and tokens seen."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """An untrained Llama of about four million parameters."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config)


def stored_model(directory: Path) -> LlamaForCausalLM:
    """A stored model, to be trained further."""
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    return cast(LlamaForCausalLM, model)


def new_optimizers(model: LlamaForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, with AdamW's step size, and AdamW for the embeddings and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)]


class Training:
    """A run that can be stopped at any time and goes on from its last checkpoint."""

    def __init__(
        self, model: LlamaForCausalLM, stream: ExampleStream, budget: Budget, checkpoint: Path, rate: float
    ) -> None:
        self.model, self._stream, self._budget, self._rate = model, stream, budget, rate
        self._file = checkpoint / FILE
        self.position = Position()
        self._optimizers = new_optimizers(model, rate)
        if self._file.exists():
            self._restore()

    def run(self) -> None:
        """Trains until the budget is used up, saving a checkpoint every minute and at the end."""
        saved = time.monotonic()
        self.model.train()
        with tqdm(initial=round(100 * self._progress(), 1), total=100, unit="%", mininterval=5) as bar:
            while self._progress() < 1:
                loss = self._step()
                self._show(bar, loss)
                if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS:
                    self._save()
                    saved = time.monotonic()
        self._save()

    def _progress(self) -> float:
        return self._budget.progress(self.position.step, self.position.seconds)

    def _step(self) -> float:
        started = time.monotonic()
        for group in (group for optimizer in self._optimizers for group in optimizer.param_groups):
            group["lr"] = self._rate * schedule(self.position.step, self._progress())
        batches = [self._stream.next_batch(self._progress()) for _ in range(BATCHES_PER_STEP)]
        learned = sum(int((batch.labels != IGNORED).sum()) for batch in batches)
        loss = sum(self._backward(batch, learned) for batch in batches)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.position.step += 1
        self.position.tokens += sum(batch.ids.numel() for batch in batches)
        self.position.seconds += min(LONGEST_STEP_SECONDS, time.monotonic() - started)
        return loss

    def _backward(self, batch: Batch, learned: int) -> float:
        """The batch's part of the step's loss; scores are computed only where there is something to learn."""
        device = self.model.device
        labels = batch.labels.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            hidden = self.model.model(input_ids=batch.ids.to(device), use_cache=False).last_hidden_state
            scores = self.model.lm_head(hidden[labels != IGNORED]).float()
        loss = torch.nn.functional.cross_entropy(scores, labels[labels != IGNORED], reduction="sum") / learned
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _show(self, bar: "tqdm[Any]", loss: float) -> None:
        speed = self.position.tokens / max(self.position.seconds, 1e-9)
        bar.set_postfix(
            step=self.position.step, loss=f"{loss:.3f}", tokens_per_s=f"{speed:.0f}", refresh=False
        )
        bar.n = round(100 * self._progress(), 2)
        bar.update(0)

    def _save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "stream": self._stream.state(),
            "position": asdict(self.position),
        }
        partial = self._file.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._file)

    def _restore(self) -> None:
        state = torch.load(self._file, weights_only=False, map_location="cpu")  # it may come from a GPU
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._stream.restore(state["stream"])
        self.position = Position(**state["position"])


def schedule(step: int, progress: float) -> float:
    """The learning rate's factor: warm-up, then constant, then linearly down to nearly nothing."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    return warm * min(1.0, (1.02 - progress) / (1 - DECAY_FROM))


def mean_weights(checkpoints: list[Path]) -> dict[str, torch.Tensor]:
    """The mean of the weights of several checkpoints; runs of which each began where another one ended."""
    states = [
        torch.load(each / FILE, weights_only=False, map_location="cpu")["model"] for each in checkpoints
    ]
    return {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}


def export(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, lexicon: dict[str, str], output: Path
) -> None:
    """Writes the model directory, weights in bfloat16; every file is replaced as a whole."""
    partial = output.with_name(output.name + ".partial")
    stored = LlamaForCausalLM(model.config)
    stored.load_state_dict(model.state_dict())
    stored.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    stored.to(torch.bfloat16).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    (partial / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=2) + "\n")
    write_lexicon(lexicon, partial)
    output.mkdir(parents=True, exist_ok=True)
    for file in sorted(partial.iterdir()):
        file.chmod(0o644)
        file.replace(output / file.name)
    partial.rmdir()
