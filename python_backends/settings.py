"""Every setting there is: one frozen dataclass per part of the house, read from `gapless.toml`, checked once, never written again.

`load` reads the file and the overrides of the command line; the launcher writes the result to the run directory, and every process
reads it back from there. The comments in `gapless.toml` explain each field; a test holds the two together.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNMEASURED_KV_GIB = 1.0  # engine.kv_memory_gib = 0 on a CPU, and beside TensorRT-LLM
PREDICTED_POLICIES = ("ours", "hrrn", "sjf")  # that go by predicted lengths
ROOT = Path(__file__).resolve().parent.parent


class SettingsError(ValueError):
    """A setting that can't be used: the message names it, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    directory: str = "models/bundled"
    dtype: str = "float32"
    weights: str = "same"
    device: str = "cpu"
    max_model_tokens: int = 0
    random_weights: bool = False


@dataclass(frozen=True, slots=True)
class EngineSettings:
    kind: str = "torch"
    slots: int = 16
    block_tokens: int = 32
    kv_blocks: int = 0
    kv_memory_gib: float = 0.0
    token_budget: int = 512
    steps_ahead: int = -1
    cuda_graphs: str = "auto"
    threads: int = 0
    fused_layers: bool = True
    trace_steps: int = 20
    toy_step_ms: float = 0.0
    toy_poison_token: int = -1

    @property
    def kv_bytes(self) -> int:
        """Memory for KV blocks where the device does not say how much it has free."""
        return int((self.kv_memory_gib or UNMEASURED_KV_GIB) * 2**30)

    @property
    def measures_kv(self) -> bool:
        """Whether the number of KV blocks is left to what the device has free, if that can be asked."""
        return not self.kv_blocks and not self.kv_memory_gib


@dataclass(frozen=True, slots=True)
class TensorRTLLMSettings:
    tensor_parallelism: int = 1
    capacity: str = "guaranteed_no_evict"
    abort: str = "engine"
    lost_after_s: float = 120.0
    adapters: str = ""
    max_adapter_rank: int = 64
    refuse: str = ""
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    policy: str = "ours"
    static_slots: bool = True
    max_step_ms: float = 150.0
    max_passed_over_s: float = 10.0
    patience: float = 0.1
    memory_share: float = 0.95
    memory_caution: float = 1.0
    ttft_s: float = 1.0


@dataclass(frozen=True, slots=True)
class StreamSettings:
    max_open: int = 1024
    max_queued_tokens: int = 1_000_000
    coalescing_ms: float = 60.0
    sender_load: float = 0.0075
    probe_ms: float = 250.0
    first_chunk_ms: float = 500.0
    max_unacknowledged: int = 32
    max_in_flight: int = 128
    dead_after_s: float = 10.0


@dataclass(frozen=True, slots=True)
class LimitSettings:
    default_max_tokens: int = 256
    max_prompt_bytes: int = 1_000_000
    max_prompt_tokens: int = 0
    max_stop_words: int = 16
    max_stop_word_bytes: int = 256
    max_bad_words: int = 64
    max_top_log_probs: int = 20


@dataclass(frozen=True, slots=True)
class ServerSettings:
    address: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    drain_s: float = 30.0
    ready_s: float = 600.0
    model_repository: str = "model_repository"
    trace_url: str = ""
    trace_every: int = 1
    statistics: bool = False
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    enabled: bool = True
    directory: str = "run/prediction"
    encoder: str = "packaged"
    encoder_from: int = 200
    processor_share: float = 0.03
    sample_every_s: float = 5.0
    relearn_s: float = 180.0
    max_logged: int = 50_000
    keep_prompts: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    tensorrt_llm: TensorRTLLMSettings = TensorRTLLMSettings()
    scheduling: SchedulingSettings = SchedulingSettings()
    prediction: PredictionSettings = PredictionSettings()
    streams: StreamSettings = StreamSettings()
    limits: LimitSettings = LimitSettings()
    server: ServerSettings = ServerSettings()

    @property
    def predicts_lengths(self) -> bool:
        """Whether lengths are predicted and learned: if somebody goes by them."""
        return self.prediction.enabled and self.scheduling.policy in PREDICTED_POLICIES

    @property
    def steps_ahead(self) -> int:
        """Steps launched before the oldest is read."""
        chosen = self.engine.steps_ahead
        return chosen if chosen >= 0 else int(self.model.device != "cpu")

    @property
    def engine_gives_way(self) -> bool:
        """Whether its threads offer their processor to others while they wait for each other: OpenVINO's do, torch's keep it."""
        return self.engine.kind == "openvino"

    @property
    def model_directory(self) -> Path:
        path = Path(self.model.directory)
        return path if path.is_absolute() else ROOT / path


_CHOICES = {
    "model.dtype": ("float32", "bfloat16"),
    "model.weights": ("same", "int8"),
    "engine.kind": ("torch", "openvino", "tensorrt_llm", "toy"),
    "engine.cuda_graphs": ("auto", "off", "eager"),
    "tensorrt_llm.capacity": ("guaranteed_no_evict", "max_utilization"),
    "tensorrt_llm.abort": ("engine", "drain"),
    "scheduling.policy": ("ours", "hrrn", "sjf", "past_future", "fcfs", "orca"),
}
_RANGES = {
    "engine.slots": (1, 4096),
    "engine.block_tokens": (1, 1024),
    "engine.token_budget": (1, 1 << 20),
    "engine.steps_ahead": (-1, 2),
    "engine.kv_memory_gib": (0.0, 4096.0),
    "engine.kv_blocks": (0, 1 << 30),
    "engine.threads": (0, 4096),
    "engine.trace_steps": (1, 10_000),
    "tensorrt_llm.tensor_parallelism": (1, 64),
    "tensorrt_llm.lost_after_s": (0.1, 86_400.0),
    "tensorrt_llm.max_adapter_rank": (1, 4096),
    "model.max_model_tokens": (0, 1 << 24),
    "scheduling.max_step_ms": (0.0, 600_000.0),
    "scheduling.max_passed_over_s": (0.0, 86_400.0),
    "scheduling.patience": (0.0, 1000.0),
    "scheduling.memory_share": (0.1, 1.0),
    "scheduling.memory_caution": (0.0, 10.0),
    "scheduling.ttft_s": (0.0, 3600.0),
    "prediction.encoder_from": (0, 1 << 30),
    "prediction.processor_share": (0.0, 1.0),
    "prediction.sample_every_s": (0.0, 86_400.0),
    "prediction.relearn_s": (1.0, 86_400.0),
    "prediction.max_logged": (100, 10_000_000),
    "streams.max_open": (1, 1 << 20),
    "streams.max_queued_tokens": (1, 1 << 40),
    "streams.coalescing_ms": (0.0, 60.0),
    "streams.sender_load": (0.0001, 1.0),
    "streams.probe_ms": (10.0, 10_000.0),
    "streams.max_unacknowledged": (1, 4096),
    "streams.max_in_flight": (1, 65536),
    "streams.dead_after_s": (1.0, 3600.0),
    "limits.default_max_tokens": (1, 1 << 20),
    "limits.max_prompt_bytes": (1, 1 << 30),
    "limits.max_prompt_tokens": (0, 1 << 24),
    "limits.max_stop_words": (0, 1024),
    "limits.max_stop_word_bytes": (1, 1 << 16),
    "limits.max_bad_words": (0, 1024),
    "limits.max_top_log_probs": (0, 1024),
    "streams.first_chunk_ms": (10.0, 600_000.0),
    "server.drain_s": (0.0, 86_400.0),
    "server.ready_s": (1.0, 86_400.0),
    "server.trace_every": (1, 1 << 30),
    "server.http_port": (1, 65535),
    "server.grpc_port": (1, 65535),
    "server.metrics_port": (1, 65535),
}


def load(path: Path, overrides: dict[str, str] | None = None) -> Settings:
    """Reads `path` (TOML), then applies `section.field = text` overrides. Raises SettingsError."""
    try:
        table: dict[str, dict[str, Any]] = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    for name, text in (overrides or {}).items():
        section, _, field = name.partition(".")
        table.setdefault(section, {})[field] = _parse(name, text)
    return _settings(table)


def dump(settings: Settings, path: Path) -> None:
    path.write_text(json.dumps(dataclasses.asdict(settings), indent=1))


def undump(path: Path) -> Settings:
    """The settings that `dump` wrote."""
    return _settings(json.loads(path.read_text()))


def _settings(table: dict[str, dict[str, Any]]) -> Settings:
    parts = typing.get_type_hints(Settings)
    for section in table:
        if section not in parts:
            raise SettingsError(f"unknown section [{section}]; there are {', '.join(parts)}")
    return Settings(**{name: _part(name, part, table.get(name, {})) for name, part in parts.items()})


def _part(section: str, part: type[Any], values: dict[str, Any]) -> Any:
    types = typing.get_type_hints(part)
    checked = {}
    for field, value in values.items():
        if field not in types:
            raise SettingsError(f"unknown setting {section}.{field}; there are {', '.join(types)}")
        checked[field] = _checked(f"{section}.{field}", value, types[field])
    return part(**checked)


def _checked(name: str, value: Any, wanted: type[Any]) -> Any:
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise SettingsError(f"{name} = {value!r}: must be of type {wanted.__name__}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise SettingsError(f"{name} = {value!r}: must be one of {', '.join(_CHOICES[name])}")
    low, high = _RANGES.get(name, (value, value))
    if not low <= value <= high:
        raise SettingsError(f"{name} = {value!r}: must be between {low} and {high}")
    return value


def _parse(name: str, text: str) -> Any:
    section, _, field = name.partition(".")
    parts = typing.get_type_hints(Settings)
    wanted = typing.get_type_hints(parts[section]).get(field) if section in parts else None
    if wanted is None:
        raise SettingsError(f"unknown setting {name}")
    if wanted is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return wanted(text)
    except ValueError as error:
        raise SettingsError(f"{name} = {text!r}: must be of type {wanted.__name__}") from error
