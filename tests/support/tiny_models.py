"""Small random models of real architectures, what transformers answers with them, and our engine behind the
slot scheduler.

The weights are drawn wide, so that answers have many different tokens and a mistake anywhere shows. Used by
every test in tests/cpu.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    ArceeConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Cohere2Config,
    CohereConfig,
    CwmConfig,
    Ernie4_5Config,
    Exaone4Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    GlmConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    HeliumConfig,
    LlamaConfig,
    MinistralConfig,
    Mistral3Config,
    MistralConfig,
    MixtralConfig,
    NemotronConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoeConfig,
    Phi3Config,
    PhiConfig,
    Qwen2_5_VLConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3VLConfig,
    SeedOssConfig,
    SmolLM3Config,
    StableLmConfig,
    Starcoder2Config,
)

from python_backends.engine.protocol import Engine
from python_backends.engine.torch.engine import TorchEngine
from python_backends.nouns.request import Finish, Floats, Ids, Request, Sampling
from python_backends.nouns.step import PromptLogProbs
from python_backends.scheduling.policies.fcfs import reserve_max_tokens
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.state.view import Reserve
from python_backends.settings import (
    EngineSettings,
    ModelSettings,
    PredictionSettings,
    SchedulingSettings,
    Settings,
)
from python_backends.streams.log_probs import PromptScores

VOCABULARY = 512
BFLOAT16_REGRET = 0.03  # measured: 0.0001 to 0.006 over all models and engines
INT8_REGRET = 0.1  # measured: 0.0003 to 0.03
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
    "pad_token_id": None,
}
_GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
# wider than hidden / heads
_WIDE_HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
_GROUPED_WIDE = {**_GROUPED, "head_dim": 32}
_SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
_PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
_ROPE_BY_LAYER = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 100_000.0, "factor": 4.0},
}


def _long_rope(original: int) -> dict[str, Any]:
    """transformers takes the long factors for sequences of more than `original` tokens."""
    factors = {
        "short_factor": [1.0, 1.1, 1.3, 1.8],
        "long_factor": [1.0, 2.0, 5.0, 9.0],
        "attention_factor": 1.2,
    }
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": {**_PARTIAL_ROPE, **factors, "rope_type": "longrope"},
    }


# Models that every scenario is run with: what their configuration has beyond the shape.
TINY: dict[str, tuple[type, dict[str, Any]]] = {
    "llama_grouped": (LlamaConfig, {**_GROUPED, "rope_parameters": _LLAMA3_ROPE}),
    "llama_tied": (
        LlamaConfig,
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": _LINEAR_ROPE,
        },
    ),
    "qwen2": (Qwen2Config, {**_WIDE_HEADS, "tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, _WIDE_HEADS),
    "mistral": (MistralConfig, {**_GROUPED, "sliding_window": 16}),
    "gemma2": (
        Gemma2Config,
        {
            **_GROUPED_WIDE,
            **_SLIDING,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 8.0,
            "final_logit_softcapping": 20.0,
            "tie_word_embeddings": False,
        },
    ),
    "gemma3": (
        Gemma3TextConfig,
        {
            **_GROUPED_WIDE,
            **_SLIDING,
            "query_pre_attn_scalar": 24,
            "rope_parameters": _ROPE_BY_LAYER,
            "tie_word_embeddings": False,
        },
    ),
    "phi3": (Phi3Config, {**_GROUPED, **_long_rope(2)}),
    "gpt_neox": (
        GPTNeoXConfig,
        {"num_attention_heads": 4, "rope_parameters": _PARTIAL_ROPE, "initializer_range": 0.6},
    ),
    "qwen3_moe": (
        Qwen3MoeConfig,
        {
            **_WIDE_HEADS,
            **_EXPERTS,
            "moe_intermediate_size": 96,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
}

# Models that share the mechanisms of those above, compared in fewer scenarios.
RELATIVES: dict[str, tuple[type, dict[str, Any]]] = {
    "arcee": (ArceeConfig, _GROUPED),
    "cohere": (CohereConfig, {**_GROUPED, "logit_scale": 0.25}),
    "cohere2": (Cohere2Config, {**_GROUPED, **_SLIDING, "logit_scale": 0.25}),
    "cwm": (CwmConfig, {**_GROUPED_WIDE, **_SLIDING, "bos_token_id": 1, "rope_parameters": _LLAMA3_ROPE}),
    "ernie4_5": (Ernie4_5Config, {**_WIDE_HEADS, "use_bias": True}),
    "exaone4": (Exaone4Config, {**_GROUPED, **_SLIDING}),
    "exaone4_full": (
        Exaone4Config,
        {**_GROUPED, "sliding_window": None, "layer_types": ["full_attention"] * 3, "initializer_range": 1.0},
    ),
    "gemma": (GemmaConfig, _WIDE_HEADS),
    "glm": (GlmConfig, _WIDE_HEADS),
    "glm4": (Glm4Config, _WIDE_HEADS),
    "gpt2": (GPT2Config, {"num_attention_heads": 4}),
    "gpt2_wide": (
        GPT2Config,
        {
            "num_attention_heads": 4,
            "n_inner": 96,
            "activation_function": "relu",
            "tie_word_embeddings": False,
        },
    ),
    "gpt_neox_sequential": (
        GPTNeoXConfig,
        {
            "num_attention_heads": 4,
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "gelu_fast",
        },
    ),
    "granite": (
        GraniteConfig,
        {
            **_GROUPED,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.3,
            "logits_scaling": 2.5,
        },
    ),
    "helium": (HeliumConfig, {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}),
    "llama_dynamic": (LlamaConfig, {**_GROUPED, "rope_parameters": {**_LINEAR_ROPE, "rope_type": "dynamic"}}),
    "ministral": (MinistralConfig, {**_GROUPED_WIDE, **_SLIDING}),
    "mixtral": (MixtralConfig, {**_GROUPED, **_EXPERTS, "sliding_window": 16}),
    "nemotron": (NemotronConfig, _GROUPED),
    "olmo2": (Olmo2Config, _GROUPED),
    "olmo3": (Olmo3Config, {**_GROUPED, **_SLIDING, "rope_parameters": _ROPE_BY_LAYER}),
    "olmoe": (OlmoeConfig, {**_GROUPED, **_EXPERTS}),
    "phi": (PhiConfig, {**_GROUPED, "initializer_range": 0.6}),
    "phi3_short": (Phi3Config, {**_GROUPED, **_long_rope(384), "sliding_window": 16}),
    "qwen3_moe_sparse": (
        Qwen3MoeConfig,
        {
            **_WIDE_HEADS,
            **_EXPERTS,
            "moe_intermediate_size": 96,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 16,
        },
    ),
    "qwen3_sliding": (
        Qwen3Config,
        {**_WIDE_HEADS, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "seed_oss": (SeedOssConfig, {**_WIDE_HEADS, "attention_out_bias": True}),
    "smollm3": (SmolLM3Config, {**_GROUPED, "no_rope_layers": [1, 0, 1]}),
    "stablelm": (StableLmConfig, {**_GROUPED, "use_qkv_bias": True}),
    "stablelm_parallel": (StableLmConfig, {**_GROUPED, "use_parallel_residual": True}),
    "starcoder2": (Starcoder2Config, {**_GROUPED, "sliding_window": 16}),
}

_TOWER = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
_VISUAL = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 64,
}
# Models that take images as well: the text's part of their configuration, and the rest.
WITH_IMAGES: dict[str, tuple[type, dict[str, Any], dict[str, Any]]] = {
    "gemma3_vision": (
        Gemma3Config,
        TINY["gemma3"][1],
        {"vision_config": _TOWER, "mm_tokens_per_image": 4, "tie_word_embeddings": False},
    ),
    "mistral3": (
        Mistral3Config,
        {"model_type": "mistral", **_GROUPED_WIDE, "sliding_window": 16},
        {"vision_config": {**_TOWER, "model_type": "pixtral", "head_dim": 8}},
    ),
    "qwen2_5_vl": (
        Qwen2_5_VLConfig,
        {**_GROUPED, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
        {"vision_config": _VISUAL},
    ),
    "qwen3_vl": (
        Qwen3VLConfig,
        {
            **_GROUPED_WIDE,
            "rope_scaling": {
                "rope_type": "default",
                "mrope_interleaved": True,
                "mrope_section": [6, 5, 5],
            },
        },
        {"vision_config": {**_VISUAL, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}},
    ),
}

WITH_EXPERTS = frozenset(
    name
    for name, (config_type, options) in (TINY | RELATIVES).items()
    if hasattr(config_type(**_SHAPE | options), "num_experts_per_tok")
)
# by layers in C++, where the processor has what these need
BY_LAYERS = frozenset(TINY | RELATIVES) - WITH_EXPERTS

# Embeddings of unlike length than other weights, where a model would repeat a token otherwise.
_EMBEDDING_STD = {
    "exaone4": 1.2,
    "exaone4_full": 4.0,
    "gemma2": 0.1,
    "gemma3": 0.1,
    "gemma3_vision": 0.1,
    "olmo2": 1.2,
    "olmo3": 1.2,
}


def build(name: str) -> Any:
    """transformers' model with weights drawn wide, biases and norms too, which it starts at 0 and 1."""
    torch.manual_seed(17)
    # its other kinds of attention leave out capped scores
    model = class_of(name).from_config(configuration(name), attn_implementation="eager").eval()
    if name in _EMBEDDING_STD:
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=_EMBEDDING_STD[name])
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
        elif parameter.ndim == 1:  # a norm
            middle = float(parameter.detach().mean())  # 0 where a family adds one
            torch.nn.init.uniform_(parameter, middle - 0.5, middle + 0.5)
    return model


def class_of(name: str) -> Any:
    """transformers' class that makes the model."""
    return AutoModelForImageTextToText if name in WITH_IMAGES else AutoModelForCausalLM


def configuration(name: str) -> Any:
    if name in WITH_IMAGES:
        made, text, others = WITH_IMAGES[name]
        return made(text_config=_SHAPE | text, **others)
    config_type, options = (TINY | RELATIVES)[name]
    return config_type(**_SHAPE | options)


@dataclass(slots=True)
class Agreement:
    """What all comparisons of a test session came to; printed at its end."""

    num_tokens: int = 0
    num_ties: int = 0
    smallest_gap: float = float("inf")
    notes: list[str] = field(default_factory=list)

    def told(self) -> list[str]:
        whole = (
            f"tokens compared with transformers: {self.num_tokens}, ties: {self.num_ties}, "
            f"smallest gap between the two best logits: {self.smallest_gap:.1e}"
        )
        return [whole, *self.notes] if self.num_tokens else self.notes


@dataclass(slots=True)
class TinyModel:
    """transformers' model and the directory it was saved to."""

    directory: Path
    model: Any
    agreement: Agreement
    references: dict[bytes, list[int]] = field(default_factory=dict)

    def reference(self, prompt: Ids, count: int) -> list[int]:
        """transformers' greedy answer of `count` tokens."""
        known = self.references.get(prompt.tobytes(), [])
        if len(known) < count:
            known = self.references[prompt.tobytes()] = generate(self.model, prompt, count)
        return known[:count]

    def check(self, request: Request, answer: list[int], count: int = 0) -> None:
        """`answer` is transformers': each token is the best one after those before it. A token that differs
        where the gap between the two best logits is tiny is a tie, counted, and ends the comparison.
        """
        assert len(answer) == (count or request.sampling.max_tokens)
        best = logits_along(self.model, request.prompt, answer).topk(2)
        expected, gaps = best.indices[:, 0].tolist(), (best.values[:, 0] - best.values[:, 1]).tolist()
        first = num_alike(answer, expected)
        self.agreement.num_tokens += len(answer)
        self.agreement.smallest_gap = min(self.agreement.smallest_gap, *gaps[: first + 1])
        if first < len(answer) and gaps[first] < TIE_GAP:
            self.agreement.num_ties += 1
        else:
            assert answer == expected, f"first difference at token {first}, gap {gaps[first]}"

    def check_all(self, requests: Iterable[Request], answers: dict[int, list[int]]) -> None:
        for request in requests:
            self.check(request, answers[request.request_id])

    def settings(self, **engine: Any) -> Settings:
        dtype = engine.pop("dtype", "float32")
        device = engine.pop("device", "cpu")
        weights = engine.pop("weights", "same")
        max_model_tokens = engine.pop("max_model_tokens", 0)
        states = engine.pop("states", True)
        model = ModelSettings(str(self.directory), dtype, weights, device, max_model_tokens)
        return Settings(
            model=model,
            engine=EngineSettings(**{"slots": 4, "block_tokens": 8, "threads": 1} | engine),
            prediction=PredictionSettings(states=states),
        )

    def engine(self, **engine: Any) -> TorchEngine:
        return TorchEngine(self.settings(**engine))

    def layers_engine(self, **engine: Any) -> TorchEngine:
        """The torch engine with layers in C++."""
        made = self.engine(**{"block_tokens": 32} | engine)
        assert made._layer_steps is not None
        return made

    def engine_of(self, kind: str, **options: Any) -> Engine:
        """`kind`: torch, by its operators; layers."""
        make = {"torch": self.engine, "layers": self.layers_engine}
        return make[kind](**options)

    def check_rounding(
        self, what: str, requests: list[Request], answers: dict[int, list[int]], most_regret: float
    ) -> None:
        """Every answer is whole, and its tokens are nearly as good as the
        best. Notes how much of it is that of float32.
        """
        assert all(len(answers[request.request_id]) == request.sampling.max_tokens for request in requests)
        measured = [self._rounding(request, answers[request.request_id]) for request in requests]
        same, regret = np.mean(measured, axis=0)
        self.agreement.notes.append(
            f"{what}, {self.directory.name}: {same:.0%} of an answer as in float32, regret {regret:.4f}"
        )
        assert regret <= most_regret

    def _rounding(self, request: Request, answer: list[int]) -> tuple[float, float]:
        """The share of an answer up to the first token that transformers has otherwise in float32, and its
        regret: how much worse than the best its tokens are, on average: the distance from the largest logit,
        in standard deviations of the logits, after the same tokens before. 0 for a greedy answer in float32;
        about 3 for random tokens.
        """
        logits = logits_along(self.model, request.prompt, answer)
        best, chosen = logits.max(1), logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        same = num_alike(answer, best.indices.tolist()) / len(answer)
        return same, float(((best.values - chosen) / logits.std(1)).mean())


@torch.no_grad()
def logits_along(model: Any, prompt: Ids, answer: list[int]) -> Tensor:
    """transformers' logits before each token of an answer, in one pass over all of them."""
    tokens = torch.tensor([[*prompt.tolist(), *answer]])
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return logits


def num_alike(answer: list[int], expected: list[int]) -> int:
    """How many tokens two answers of one length begin with alike."""
    return int((np.array(answer) == np.array(expected)).cumprod().sum())


def generate(model: Any, prompt: Ids, count: int, **options: Any) -> list[int]:
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    options |= {"do_sample": False, "attention_mask": torch.ones_like(ids), "max_new_tokens": count}
    answer: list[int] = model.generate(ids, **options)[0, len(prompt) :].tolist()
    return answer


def random_requests(count: int, seed: int = 0, **sampling: Any) -> list[Request]:
    """Prompts of 3 to 60 tokens, answers of 20 to 50."""
    generator = np.random.default_rng(seed)
    return [_random_request(index, generator, sampling) for index in range(count)]


def _random_request(index: int, generator: np.random.Generator, sampling: dict[str, Any]) -> Request:
    prompt = generator.integers(0, VOCABULARY, generator.integers(3, 61)).astype(np.int32)
    return Request(index, prompt, Sampling(**{"max_tokens": int(generator.integers(20, 51))} | sampling))


class Serving:
    """An engine behind a slot scheduler, `ahead` steps launched before the oldest is read."""

    def __init__(
        self, engine: Engine, token_budget: int = 24, ahead: int = 1, reserve: Reserve = reserve_max_tokens
    ) -> None:
        self.engine = engine
        self.scheduler = SlotScheduler(
            engine.limits, token_budget, SchedulingSettings(policy="fcfs"), reserve
        )
        self.ahead = ahead
        self.answers: dict[int, list[int]] = {}
        self.finishes: dict[int, Finish] = {}
        self.states: dict[tuple[int, int], Floats] = {}  # by request and tokens of its answer
        self.prompts: dict[int, PromptScores] = {}  # of those that want them
        self.num_scored: list[int] = []  # rows of each step that scores any
        self.num_steps = 0
        self._launched: list[Any] = []

    def submit(self, request: Request, delivered: Iterable[int] = ()) -> None:
        self.answers[request.request_id] = list(delivered)
        if request.wants_prompt_log_probs:
            self.prompts.setdefault(request.request_id, PromptScores(request))
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
        output = self.engine.collect()
        states = self.scheduler.hidden_states(plan, output)
        if states is not None:
            places = zip(states.request_ids.tolist(), states.num_written.tolist(), strict=True)
            self.states.update(zip(places, states.by_row(), strict=True))
        if scores := self.scheduler.prompt_log_probs(plan, output):
            self._put(scores)
        events = self.scheduler.apply(plan, output)
        for request_id, token, finish in zip(events.request_ids, events.tokens, events.finishes, strict=True):
            self.answers[int(request_id)].append(int(token))
            if finish != Finish.RUNNING:
                self.finishes[int(request_id)] = Finish(finish)

    def _put(self, scores: PromptLogProbs) -> None:
        self.num_scored.append(len(scores.indices))
        for request_id in set(scores.request_ids.tolist()):
            its = scores.request_ids == request_id
            self.prompts[request_id].put(scores.indices[its], scores.values.kept(its))
