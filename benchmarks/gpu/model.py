"""The model that `gpu` measures: Llama-3.1-8B's shape without its checkpoint. A directory has only
configuration and tokenizer; the weights are random, made on the device (`model.random_weights`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.models import LETTERS, make_tokenizer
from python_backends.settings import EngineSettings, ModelSettings, Settings

LLAMA_3_1_8B: dict[str, Any] = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MOST_KV_GIB = 80.0
STEPS_AHEAD = 1  # of the loop, as it runs on a GPU; also where a CPU tries the benchmarks
KEPT_GIB = 28.0  # of the device, for weights, the tensors of a step, and libraries


@dataclass(frozen=True, slots=True)
class Measured:
    """The model and the device of the measurements; the same for every part."""

    directory: Path  # of the model
    device: str
    quick: bool
    cuda_graphs: str = "auto"  # what works there
    published: Path | None = None  # a GGUF file

    @property
    def shape(self) -> dict[str, Any]:
        return TINY if self.quick else LLAMA_3_1_8B

    @property
    def vocabulary(self) -> int:
        return int(self.shape["vocab_size"])

    @property
    def letters(self) -> int:
        """Letters of a token's text: as few as possible with a different text for each token."""
        return next(count for count in range(1, 9) if len(LETTERS) ** count >= self.vocabulary)

    @property
    def kv_token_bytes(self) -> int:
        head_dim = self.shape["hidden_size"] // self.shape["num_attention_heads"]
        return int(2 * 2 * self.shape["num_hidden_layers"] * self.shape["num_key_value_heads"] * head_dim)

    @property
    def kv_gib(self) -> float:
        """Most memory for KV blocks. A device of 80 GB has 50 left: enough for the online work, whose 512
        slots need 48.
        """
        import torch

        if self.quick:
            return 0.05
        if self.device == "cpu":
            return MOST_KV_GIB
        memory_gib = torch.cuda.get_device_properties(self.device).total_memory / 2**30
        return float(min(MOST_KV_GIB, memory_gib - KEPT_GIB))

    def write(self) -> None:
        from transformers import LlamaConfig

        self.directory.mkdir(parents=True)
        options = {
            "max_position_embeddings": 8192,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        LlamaConfig(**self.shape, **options, architectures=["LlamaForCausalLM"]).save_pretrained(
            self.directory
        )
        make_tokenizer(self.directory, self.vocabulary, self.letters)

    def settings(self, slots: int, max_model_tokens: int, token_budget: int) -> Settings:
        model = ModelSettings(
            str(self.directory),
            "bfloat16",
            device=self.device,
            max_model_tokens=max_model_tokens,
            random_weights=True,
        )
        engine = EngineSettings(
            slots=slots,
            token_budget=token_budget,
            kv_memory_gib=self.kv_gib,
            cuda_graphs=self.cuda_graphs,
        )
        return Settings(model=model, engine=engine)
