"""The engines by the names of `engine.kind`, and what others must know of each kind.

An engine's libraries are imported only when it is made. No code outside this room compares the names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from python_backends.engine.protocol import Engine
from python_backends.settings import Settings, SettingsError
from python_backends.settings.setting import imported


def _torch_engine(settings: Settings) -> Engine:
    # brings torch, which other engines don't need
    from python_backends.engine.torch.engine import TorchEngine

    return TorchEngine(settings)


def _openvino_engine(settings: Settings) -> Engine:
    from python_backends.engine.openvino.engine import OpenVINOEngine

    return OpenVINOEngine(settings)


def _openvino_layers(settings: Settings) -> str | None:
    if settings.model.dtype != "bfloat16":
        return None
    from python_backends.engine.openvino.fused_layer import library

    path = library()
    return None if path is None else path.name


def _openvino_must_fuse(settings: Settings) -> bool:
    from python_backends.engine.model.loading import facts_of
    from python_backends.engine.openvino.known_fault import would_end_the_process

    return would_end_the_process(settings, facts_of(settings))


def _tensorrt_llm_engine(settings: Settings) -> Engine:
    try:
        from python_backends.engine.tensorrt_llm.engine import TensorRTLLMEngine
    except (ImportError, OSError) as error:  # OSError: one of its libraries
        raise SettingsError(f"engine.kind = 'tensorrt_llm': {error} (docs/tensorrt_llm.md)") from error

    return TensorRTLLMEngine(settings)


@dataclass(frozen=True, slots=True)
class EngineKind:
    make: Callable[[Settings], Engine]  # raises SettingsError
    gives_way: bool = False  # its threads yield their processor while they wait for each other
    warms_up: bool = True  # it takes its first steps before the instance is ready
    takes_adapters: bool = False
    has_weights: bool = True
    # its fused layers for these settings here, by a name that changes with their code, or None; only a trial
    # tells whether they are faster
    fused_layers: Callable[[Settings], str | None] = lambda _: None
    # whether an engine without them would end the process: nothing is to be tried then
    must_fuse: Callable[[Settings], bool] = lambda _: False


KINDS: dict[str, EngineKind] = {
    "torch": EngineKind(_torch_engine, takes_adapters=True),
    "openvino": EngineKind(
        _openvino_engine,
        gives_way=True,
        fused_layers=_openvino_layers,
        must_fuse=_openvino_must_fuse,
    ),
    "tensorrt_llm": EngineKind(_tensorrt_llm_engine, warms_up=False, takes_adapters=True),
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
