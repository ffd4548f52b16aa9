"""Small random models of real architectures, what transformers answers with them, and our engine behind the slot scheduler.

The weights are drawn wide, so that answers have many different tokens and a mistake anywhere shows. Used by every test in tests/cpu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from python_backends.config import EngineSettings, ModelSettings, Settings
from python_backends.engine.torch_engine import TorchEngine
from python_backends.request import Finish, Ids, Request, Sampling
from python_backends.scheduling.policies import Reserve, reserve_max_tokens
from python_backends.scheduling.scheduler import SlotScheduler

VOCABULARY = 512
TIE_GAP = 1e-4  # between the two best logits: closer ones may swap by rounding alone
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "max_position_embeddings": 384,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}


def _llama_grouped() -> Any:
    """Llama 3: grouped KV heads, untied head, llama3 rope."""
    config = LlamaConfig(**_SHAPE, num_attention_heads=4, num_key_value_heads=2, rope_parameters=_LLAMA3_ROPE)
    return LlamaForCausalLM(config)


def _llama_tied() -> Any:
    """One KV head a query head, tied head, biases everywhere, linear rope scaling."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}
    return LlamaForCausalLM(LlamaConfig(**_SHAPE, **heads, tie_word_embeddings=True, rope_parameters=_LINEAR_ROPE))


def _qwen2() -> Any:
    """Qwen2: biases on q, k and v, an explicit head_dim that is not hidden / heads, tied head."""
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
    return Qwen2ForCausalLM(Qwen2Config(**_SHAPE, **heads, tie_word_embeddings=True))


TINY: dict[str, Callable[[], Any]] = {"llama_grouped": _llama_grouped, "llama_tied": _llama_tied, "qwen2": _qwen2}


def build(name: str) -> Any:
    torch.manual_seed(17)
    model = TINY[name]().eval()
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):  # transformers starts them at zero, which would hide them
            torch.nn.init.normal_(parameter, std=0.3)
        if key.endswith("norm.weight"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


@dataclass(slots=True)
class Agreement:
    """What all comparisons of a test session came to; printed at its end."""

    num_tokens: int = 0
    num_ties: int = 0
    smallest_gap: float = float("inf")
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class TinyModel:
    """transformers' model and the directory it was saved to."""

    directory: Path
    model: Any
    agreement: Agreement
    references: dict[tuple[bytes, int], tuple[list[int], list[float]]] = field(default_factory=dict)

    def reference(self, prompt: Ids, count: int) -> tuple[list[int], list[float]]:
        """transformers' greedy answer of `count` tokens, and at each the gap between the two best logits."""
        key = (prompt.tobytes(), count)
        if key not in self.references:
            self.references[key] = generate(self.model, prompt, count)
        return self.references[key]

    def check(self, request: Request, answer: list[int], count: int = 0) -> None:
        """`answer` is transformers'; a token that differs where the gap is tiny is a tie, counted, and ends the comparison."""
        expected, gaps = self.reference(request.prompt, count or request.sampling.max_tokens)
        assert len(answer) == len(expected)
        self.agreement.num_tokens += len(answer)
        self.agreement.smallest_gap = min(self.agreement.smallest_gap, *gaps)
        differing = [index for index, pair in enumerate(zip(answer, expected, strict=True)) if pair[0] != pair[1]]
        if differing and gaps[differing[0]] < TIE_GAP:
            self.agreement.num_ties += 1
        else:
            assert answer == expected, f"first difference at token {differing[0]}, gap {gaps[differing[0]]}"

    def settings(self, **engine: Any) -> Settings:
        dtype = engine.pop("dtype", "float32")
        max_model_tokens = engine.pop("max_model_tokens", 0)
        model = ModelSettings(directory=str(self.directory), dtype=dtype, max_model_tokens=max_model_tokens)
        return Settings(model=model, engine=EngineSettings(**{"slots": 4, "block_tokens": 8, "threads": 1} | engine))

    def engine(self, **engine: Any) -> TorchEngine:
        return TorchEngine(self.settings(**engine))


def generate(model: Any, prompt: Ids, count: int, **options: Any) -> tuple[list[int], list[float]]:
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    options |= {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **options)
    best = torch.stack(out.logits)[:, 0].topk(2).values
    return out.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()


def random_requests(count: int, seed: int = 0, **sampling: Any) -> list[Request]:
    """Prompts of 3 to 60 tokens, answers of 20 to 50."""
    generator = np.random.default_rng(seed)
    return [_random_request(index, generator, sampling) for index in range(count)]


def _random_request(index: int, generator: np.random.Generator, sampling: dict[str, Any]) -> Request:
    prompt = generator.integers(0, VOCABULARY, generator.integers(3, 61)).astype(np.int32)
    return Request(index, prompt, Sampling(**{"max_tokens": int(generator.integers(20, 51))} | sampling))


class Serving:
    """An engine behind a slot scheduler, `ahead` steps launched before the oldest is read."""

    def __init__(self, engine: TorchEngine, token_budget: int = 24, ahead: int = 1, reserve: Reserve = reserve_max_tokens) -> None:
        self.engine = engine
        self.scheduler = SlotScheduler(engine.limits, token_budget=token_budget, reserve=reserve)
        self.ahead = ahead
        self.answers: dict[int, list[int]] = {}
        self.finishes: dict[int, Finish] = {}
        self.num_steps = 0
        self._launched: list[Any] = []

    def submit(self, request: Request, delivered: Iterable[int] = ()) -> None:
        self.answers[request.request_id] = list(delivered)
        self.scheduler.submit(request, np.array(self.answers[request.request_id], np.int32))

    def step(self) -> None:
        plan = self.scheduler.plan()
        if plan is not None:
            self.engine.launch(plan)
            self._launched.append(plan)
        if self._launched and (plan is None or len(self._launched) > self.ahead):
            self._apply(self._launched.pop(0))
        self.num_steps += 1

    def run(self, requests: Iterable[Request] = ()) -> dict[int, list[int]]:
        """Submits `requests` and serves until everything has ended. All answers so far."""
        for request in requests:
            self.submit(request)
        while not self.scheduler.is_idle:
            self.step()
            self.scheduler.check_integrity()
        return self.answers

    def _apply(self, plan: Any) -> None:
        events = self.scheduler.apply(plan, self.engine.collect())
        for request_id, token, finish in zip(events.request_ids, events.tokens, events.finishes, strict=True):
            self.answers[int(request_id)].append(int(token))
            if finish != Finish.RUNNING:
                self.finishes[int(request_id)] = Finish(finish)
