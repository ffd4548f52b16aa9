"""The engines by the names of `engine.kind`; each brings its libraries along only when it is asked for. Called by the instance."""

from __future__ import annotations

from collections.abc import Callable

from python_backends.engine.protocol import Engine
from python_backends.settings import Settings, SettingsError


def _torch_engine(settings: Settings) -> Engine:
    from python_backends.engine.torch.engine import TorchEngine  # brings torch, which other engines don't need

    return TorchEngine(settings)


def _openvino_engine(settings: Settings) -> Engine:
    from python_backends.engine.openvino.engine import OpenVINOEngine

    return OpenVINOEngine(settings)


def _tensorrt_llm_engine(settings: Settings) -> Engine:
    try:
        from python_backends.engine.tensorrt_llm.engine import TensorRTLLMEngine
    except (ImportError, OSError) as error:  # OSError: one of its libraries
        raise SettingsError(f"engine.kind = 'tensorrt_llm': {error} (docs/tensorrt_llm.md)") from error

    return TensorRTLLMEngine(settings)


def _toy_engine(settings: Settings) -> Engine:
    from python_backends.engine.toy.engine import ToyEngine

    return ToyEngine(settings)


ENGINES: dict[str, Callable[[Settings], Engine]] = {
    "torch": _torch_engine,
    "openvino": _openvino_engine,
    "tensorrt_llm": _tensorrt_llm_engine,
    "toy": _toy_engine,
}
