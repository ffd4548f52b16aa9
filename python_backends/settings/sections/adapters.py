"""[adapters]: where LoRA adapters lie, and how many are loaded."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    directory: str = setting(
        "",
        "a directory of LoRA adapters (PEFT), asked for by lora_name (docs/adapters.md); relative to this"
        " folder; empty: none. Engines torch and tensorrt_llm have adapters",
    )
    max_loaded: int = setting(
        8, "torch: adapters in the device's memory at the same time; a request waits for its own", 1, 4096
    )
