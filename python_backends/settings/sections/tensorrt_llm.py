"""[tensorrt_llm]: what is passed to TensorRT-LLM, and what is made of its answers."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class TensorRTLLMSettings:
    tensor_parallelism: int = setting(1, "GPUs that share one model", 1, 64)
    capacity: str = setting(
        "guaranteed_no_evict",
        "guaranteed_no_evict: reserve the most that an answer may need | max_utilization: reserve what it"
        " probably needs; TensorRT-LLM pauses requests when that was too little",
        choices=("guaranteed_no_evict", "max_utilization"),
    )
    abort: str = setting(
        "engine",
        "engine: a request that nobody waits for any more is aborted | drain: it keeps its slot to its end",
        choices=("engine", "drain"),
    )
    lost_after_s: float = setting(
        120.0,
        "a request of which TensorRT-LLM says nothing more for so long is lost; if it says nothing of any"
        " request, it is dead",
        0.1,
        86_400.0,
    )
    adapters: str = setting(
        "", "a directory of LoRA adapters, one in each subdirectory, asked for by lora_name; empty: none"
    )
    max_adapter_rank: int = setting(64, "the largest rank of these adapters", 1, 4096)
    refuse: str = setting(
        "", 'fields of a request, "seed,min_p": refused because your TensorRT-LLM takes no notice of them'
    )
    arguments: str = setting(
        "{}", 'more arguments of tensorrt_llm.LLM, as JSON: \'{"load_format": "dummy"}\''
    )
