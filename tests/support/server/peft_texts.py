"""What PEFT writes with an adapter over the bundled model, in float32."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.server.serving import ROOT

MODEL = ROOT / "models" / "bundled"


def text_of_peft(adapter: Path, prompt: str, num_tokens: int) -> str:
    """The greedy answer to a plain prompt, of exactly so many tokens: the end token is never chosen."""
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = PeftModel.from_pretrained(base, adapter).eval()
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    lengths = {"min_new_tokens": num_tokens, "max_new_tokens": num_tokens}
    with torch.inference_mode():
        tokens = model.generate(**ids, do_sample=False, **lengths)[0, ids["input_ids"].shape[1] :]
    return str(tokenizer.decode(tokens, skip_special_tokens=True))
