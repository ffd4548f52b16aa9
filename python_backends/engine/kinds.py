"""The engines by the names of `engine.kind`, and what others must know of each kind.

An engine's libraries are imported only when it is made. No code outside this room compares the names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from python_backends.engine.cpu.served import obstacle
from python_backends.engine.protocol import Engine
from python_backends.linux.start_clock import start_clock
from python_backends.settings import Settings, SettingsError
from python_backends.settings.setting import imported


def _torch_engine(settings: Settings) -> Engine:
    # brings torch, which other engines don't need
    from python_backends.engine.torch.engine import TorchEngine

    start_clock.ended("imports")
    return TorchEngine(settings)


def _torch_gives_way(settings: Settings) -> bool:
    """Threads of its layers do each other's work; torch's own wait for each other."""
    return not obstacle(settings)


def _tensorrt_llm_engine(settings: Settings) -> Engine:
    try:
        from python_backends.engine.tensorrt_llm.engine import TensorRTLLMEngine
    except (ImportError, OSError) as error:  # OSError: one of its libraries
        raise SettingsError(f"engine.kind = 'tensorrt_llm': {error} (docs/tensorrt_llm.md)") from error

    return TensorRTLLMEngine(settings)


def _tensorrt_llm_pauses(settings: Settings) -> bool:
    return settings.tensorrt_llm.capacity == "max_utilization"


def _tensorrt_llm_gpus(settings: Settings) -> int:
    return settings.tensorrt_llm.tensor_parallelism


@dataclass(frozen=True, slots=True)
class EngineKind:
    make: Callable[[Settings], Engine]  # raises SettingsError
    # its threads yield their processor while they wait for each other
    gives_way: Callable[[Settings], bool] = lambda _: False
    warms_up: bool = True  # it takes its first steps before the instance is ready
    takes_adapters: bool = False
    # where the settings don't say how many KV blocks there are, they get what is free of its GPU
    measures_memory: bool = False
    num_gpus: Callable[[Settings], int] = lambda _: 1  # that share one model, where GPUs compute
    # plans its own steps, and pauses sequences where memory runs out: what answers probably need is reserved
    reserves_likely: Callable[[Settings], bool] = lambda _: False
    has_weights: bool = True


KINDS: dict[str, EngineKind] = {
    "torch": EngineKind(_torch_engine, gives_way=_torch_gives_way, takes_adapters=True, measures_memory=True),
    "tensorrt_llm": EngineKind(
        _tensorrt_llm_engine,
        warms_up=False,
        takes_adapters=True,
        num_gpus=_tensorrt_llm_gpus,
        reserves_likely=_tensorrt_llm_pauses,
    ),
}


def kind_of(settings: Settings) -> EngineKind:
    """Of settings from which `choose` has taken `auto`. An engine of others is named `module:NAME`: an
    EngineKind, or a class. Raises SettingsError if it is neither, or can't be imported.
    """
    name = settings.engine.kind
    if name in KINDS:
        return KINDS[name]
    found = imported("engine.kind", name, EngineKind, type)
    return found if isinstance(found, EngineKind) else EngineKind(found)
