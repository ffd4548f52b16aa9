"""[engine]: which engine computes, how many slots it has, and how much memory."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting

UNMEASURED_KV_GIB = 1.0  # kv_memory_gib = 0 on a CPU, and with TensorRT-LLM


@dataclass(frozen=True, slots=True)
class EngineSettings:
    kind: str = setting(
        "auto",
        "auto: torch (the start says by what it computes, and why) | torch | tensorrt_llm"
        " (docs/tensorrt_llm.md) | module:NAME, an engine of your own (docs/how-to/engine.md)",
        choices=("auto", "torch", "tensorrt_llm"),
        takes_modules=True,
    )
    slots: int = setting(
        16, "rows of the decode batch: the number of answers computed at the same time", 1, 4096
    )
    block_tokens: int = setting(32, "tokens in a KV block; prefixes are shared in whole blocks", 1, 1024)
    kv_blocks: int = setting(0, "number of KV blocks; 0: as many as fit into kv_memory_gib", 0, 1 << 30)
    kv_memory_gib: float = setting(
        0.0,
        "memory for KV blocks; 0: on a GPU, the memory that is free after the weights and the largest step;"
        " on a CPU and with tensorrt_llm, 1 GiB; never more than twice what all slots can use",
        0.0,
        4096.0,
    )
    token_budget: int = setting(
        512,
        "most tokens of one step, decodes and prompt chunks together; scheduling.max_step_ms limits its time",
        1,
        1 << 20,
    )
    cuda_graphs: str = setting(
        "auto",
        "auto: on a GPU, steps are captured at the start: decodes alone for 1, 2, 4 … and all slots, prompts"
        " in sizes up to token_budget | eager: the same steps of fixed shape, not captured (also on a CPU,"
        " for tests) | off: neither these nor Gapless's kernels, only torch's operators",
        choices=("auto", "off", "eager"),
    )
    options: str = setting("", "of an engine of your own, which reads them")
    threads: int = setting(
        0,
        "threads of the engine on a CPU; 0: one for each core; torch: fewer while other programs use them",
        0,
        4096,
    )
    cpp_layers: str = setting(
        "auto",
        "auto: on a CPU the torch engine computes all layers by code of Gapless where that knows the model,"
        " compiled at the first start if there is g++ and the processor has AVX2 | off: torch's"
        " operators",
        choices=("auto", "off"),
    )

    @property
    def kv_bytes(self) -> int:
        """Memory for KV blocks if the device can't report its free memory."""
        return int((self.kv_memory_gib or UNMEASURED_KV_GIB) * 2**30)

    @property
    def measures_kv(self) -> bool:
        """Whether the free memory of the device decides the number of KV blocks, if it can be asked."""
        return not self.kv_blocks and not self.kv_memory_gib
