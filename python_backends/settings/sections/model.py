"""[model]: which checkpoint is served, and how its weights are kept."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class ModelSettings:
    directory: str = setting(
        "models/bundled",
        "a Hugging Face checkpoint: config.json, *.safetensors, tokenizer.json; relative to this folder",
    )
    dtype: str = setting(
        "auto",
        "weights, computation and KV blocks: float32 | bfloat16 | auto: bfloat16 if the checkpoint is and the"
        " processor multiplies it, else float32",
        choices=("auto", "float32", "bfloat16"),
    )
    weights: str = setting(
        "same",
        "same: as dtype | int8: the weights of the layers in one byte each (docs/design.md)",
        choices=("same", "int8"),
    )
    device: str = setting("cpu", "cpu | cuda | cuda:1 …")
    max_model_tokens: int = setting(0, "prompt and answer together; 0: what the checkpoint says", 0, 1 << 24)
    random_weights: bool = setting(
        False, "true: draw the weights on the device and read none, to measure a shape without its checkpoint"
    )
