"""[tensorrt_llm]: options of TensorRT-LLM, and how its answers are used."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class TensorRTLLMSettings:
    tensor_parallelism: int = setting(1, "GPUs that share one model", 1, 64)
    capacity: str = setting(
        "guaranteed_no_evict",
        "guaranteed_no_evict: reserve the most that an answer may need | max_utilization: reserve what it"
        " probably needs; TensorRT-LLM pauses requests if that was too little",
        choices=("guaranteed_no_evict", "max_utilization"),
    )
    arguments: str = setting(
        "{}", 'more arguments of tensorrt_llm.LLM, as JSON: \'{"load_format": "dummy"}\''
    )
