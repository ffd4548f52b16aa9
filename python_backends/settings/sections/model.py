"""[model]: the checkpoint, the type of its weights and the device."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class ModelSettings:
    directory: str = setting(
        "auto",
        "a Hugging Face checkpoint: config.json, *.safetensors, tokenizer.json; or a GGUF file, or a"
        " directory with one; relative to this folder."
        " Where there is no such path, the name of a model on the hub: ORG/NAME, ORG/NAME@REVISION"
        " (docs/engines.md) | bundled: the small model in models/bundled | auto: SmolLM2-135M-Instruct,"
        " which build/set-up installs, else bundled",
    )
    dtype: str = setting(
        "auto",
        "type of weights, computation and KV blocks: float32 | bfloat16 | auto: bfloat16 if the checkpoint"
        " has it, and the processor multiplies it or layers in C++ compute the model; else float32",
        choices=("auto", "float32", "bfloat16"),
    )
    weights: str = setting(
        "same",
        "same: as dtype | int8: each weight of the layers in one byte | int4: in 4 bits, with a scale and a"
        " minimum for 32 of them (docs/engines.md)",
        choices=("same", "int8", "int4"),
    )
    device: str = setting("cpu", "cpu | cuda | cuda:1 …")
    max_model_tokens: int = setting(
        0, "most tokens of prompt and answer together; 0: the checkpoint's limit", 0, 1 << 24
    )
    text_input_is_rendered: bool = setting(
        False,
        "true: special tokens in text_input are meant as such where a request doesn't say it itself; for"
        " front ends that render chats (docs/parameters.md)",
    )
    random_weights: bool = setting(
        False, "true: random weights; none are read, to measure a model's speed without its weights"
    )
