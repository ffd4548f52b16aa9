"""[tensorrt_llm]: options of TensorRT-LLM, and how its answers are used.

Tested in tests/pure/test_house.py.
"""

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
    abort: str = setting(
        "engine",
        "engine: a request whose answer is no longer needed is aborted | drain: it keeps its slot to its end",
        choices=("engine", "drain"),
    )
    lost_after_s: float = setting(
        120.0,
        "a request without output from TensorRT-LLM for this time is lost; if all requests are without"
        " output, TensorRT-LLM is dead",
        0.1,
        86_400.0,
    )
    refuse: str = setting(
        "", 'fields to refuse because this version of TensorRT-LLM ignores them, such as "seed,min_p"'
    )
    arguments: str = setting(
        "{}", 'more arguments of tensorrt_llm.LLM, as JSON: \'{"load_format": "dummy"}\''
    )
