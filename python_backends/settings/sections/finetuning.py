"""[finetuning]: how LoRA adapters are trained."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class FinetuningSettings:
    directory: str = setting(
        "run/finetuning",
        "the jobs, in one directory for each checkpoint; relative to this folder",
    )
    keep: str = setting(
        "products",
        "what a forward pass keeps for the backward pass: products is fastest; attention computes gate and up"
        " again, inputs whole layers, for less memory",
        choices=("products", "attention", "inputs"),
    )
    pack_tokens: int = setting(
        1024,
        "tokens whose activations are kept at a time; a longer example is computed by itself",
        16,
        1 << 20,
    )
    checkpoint_every_s: float = setting(
        60.0, "seconds from one checkpoint of a job to the next", 0.0, 86400.0
    )
