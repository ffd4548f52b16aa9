from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from tensorrt_llm.executor.result import CompletionOutput, RequestOutput
from tensorrt_llm.executor.utils import RequestError

__all__ = [
    "CapacitySchedulerPolicy",
    "CompletionOutput",
    "ContextChunkingPolicy",
    "CudaGraphConfig",
    "KvCacheConfig",
    "RequestError",
    "RequestOutput",
    "SchedulerConfig",
]


class CapacitySchedulerPolicy(Enum):
    MAX_UTILIZATION = "MAX_UTILIZATION"
    GUARANTEED_NO_EVICT = "GUARANTEED_NO_EVICT"
    STATIC_BATCH = "STATIC_BATCH"


class ContextChunkingPolicy(Enum):
    FIRST_COME_FIRST_SERVED = "FIRST_COME_FIRST_SERVED"
    EQUAL_PROGRESS = "EQUAL_PROGRESS"


@dataclass(kw_only=True)
class KvCacheConfig:
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: Any = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float = 0.9
    host_cache_size: int | None = None
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    attention_dp_events_gather_period_ms: int = 5
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    max_gpu_total_bytes: int = 0
    dtype: str = "auto"
    tokens_per_block: int = 32
    use_kv_cache_manager_v2: Any = "auto"
    max_util_for_resume: float = 0.95


@dataclass(kw_only=True)
class SchedulerConfig:
    capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    context_chunking_policy: ContextChunkingPolicy | None = None
    dynamic_batch_config: Any = None


@dataclass(kw_only=True)
class CudaGraphConfig:
    batch_sizes: list[int] | None = None
    max_batch_size: int = 0
    enable_padding: bool = False
