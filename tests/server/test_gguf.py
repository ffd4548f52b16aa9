"""A server of one GGUF file: what a client gets is the answer of the model that was written to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from python_backends.checkpoint.opening import open_source
from tests.support.gguf_models import convert
from tests.support.server.serving import Gapless
from tests.support.tiny_models import generate

NUM_TOKENS = 24
CHAT = '[{"role": "user", "content": "What is 12345?"}]'
CONFIG = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=256,
    bos_token_id=508,
    eos_token_id=510,
    pad_token_id=508,
    initializer_range=0.3,
)


@pytest.mark.parametrize("layers", ["auto", pytest.param("off", marks=pytest.mark.slow)])
def test_a_file_is_served_as_a_directory_is(tmp_path: Path, layers: str) -> None:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(CONFIG).eval()
    path = convert(model, tmp_path / "small model.gguf")
    settings = {"model.directory": str(path), "model.dtype": "float32", "engine.cpp_layers": layers}
    with Gapless(**settings) as gapless:
        answer = gapless.generate(
            messages=CHAT,
            max_tokens=NUM_TOKENS,
            min_tokens=NUM_TOKENS,
            temperature=0.0,
            return_log_probs=True,
        )
    tokenizer = open_source(path).tokenizer()
    prompt = "<|im_start|>user\nWhat is 12345?<|im_end|>\n<|im_start|>assistant\n"
    ids = np.array(tokenizer.encode(prompt).ids, np.int32)
    wanted = generate(model, ids, NUM_TOKENS, min_new_tokens=NUM_TOKENS)
    assert answer["output_ids"] == wanted
    assert answer["text_output"] == tokenizer.decode(wanted)
