from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tensorrt_llm.executor.result import GenerationResult
from tensorrt_llm.executor.utils import EngineDeadError, RequestError

__all__ = ["EngineDeadError", "GenerationResult", "LoRARequest", "RequestError"]


@dataclass(slots=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    lora_ckpt_source: str = "hf"

    def __post_init__(self) -> None:
        if not Path(self.lora_path).exists():
            raise ValueError(f"lora_path ({self.lora_path}) does not exist.")
