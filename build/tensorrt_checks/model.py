"""A small Llama without weights, and a random LoRA adapter for it: what
the checks serve when no checkpoint is given.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, RANK = 512, 4, 8, 4, 64, 8
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": HIDDEN,
    "intermediate_size": 1536,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def write_model(directory: Path) -> Path:
    """TensorRT-LLM draws the weights itself (load_format dummy)."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=1))
    (directory / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    return directory


def write_adapter(directory: Path) -> Path:
    """A random adapter of the queries and values, as PEFT writes them.
    Raises ImportError without safetensors.
    """
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    chosen = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 4 * RANK,
        "target_modules": ["q_proj", "v_proj"],
    }
    (directory / "adapter_config.json").write_text(
        json.dumps({**chosen, "bias": "none", "lora_dropout": 0.0})
    )
    rng = np.random.default_rng(0)
    tensors = {}
    for layer in range(LAYERS):
        for module, width in (("q_proj", HEADS * HEAD_DIM), ("v_proj", KV_HEADS * HEAD_DIM)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = rng.normal(size=(RANK, HIDDEN)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = rng.normal(size=(width, RANK)).astype(np.float32)
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory
