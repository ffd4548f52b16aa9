"""Between Triton's tensors and the house's nouns; what the three models share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends.config import Settings, undump
from python_backends.messages import pack, unpack

RUN_DIRECTORY = "GAPLESS_RUN_DIRECTORY"  # environment variable, set by the launcher


def run_directory() -> Path:
    return Path(os.environ[RUN_DIRECTORY])


def effective_settings() -> Settings:
    return undump(run_directory() / "settings.json")


def blob(name: str, message: Any) -> Any:
    """One of our messages as a tensor [1, bytes]."""
    return pb_utils.Tensor(name, np.frombuffer(pack(message), np.uint8).reshape(1, -1))


def unblob(request: Any, name: str) -> Any:
    """The message in input `name` of a Triton request."""
    return unpack(pb_utils.get_input_tensor_by_name(request, name).as_numpy().tobytes())


def failure(message: str, code: str = "INTERNAL") -> Any:
    """A response that is an error; `code` is one of TritonError's."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, getattr(pb_utils.TritonError, code)))


def final(sender: Any, response: Any = None) -> None:
    """Ends a decoupled request, with a last response or without."""
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
