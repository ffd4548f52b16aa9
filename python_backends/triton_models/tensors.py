"""Between Triton's tensors and the house's nouns; what the three models share."""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends.config import Settings, undump
from python_backends.instance_state import KEY
from python_backends.messages import Reader, pack

RUN_DIRECTORY = "GAPLESS_RUN_DIRECTORY"  # environment variable, set by the launcher


class ForgedError(ValueError):
    """A tensor that only our own processes may write, from somebody else."""


def run_directory() -> Path:
    return Path(os.environ[RUN_DIRECTORY])


def effective_settings() -> Settings:
    return undump(run_directory() / "settings.json")


class Blobs:
    """Our messages as tensors [1, bytes]. Each begins with a key that only our processes know: clients can call every model of the
    repository, and nobody but the tokenizer checks what they say.
    """

    def __init__(self) -> None:
        self._key = (run_directory() / KEY).read_bytes()

    def tensor(self, name: str, message: Any) -> Any:
        return pb_utils.Tensor(name, np.frombuffer(self._key + pack(message), np.uint8).reshape(1, -1))

    def message(self, request: Any, name: str, read: Reader) -> Any:
        """What `read` finds in input `name` of a Triton request. Raises ForgedError if none of our processes wrote it."""
        return self.opened(pb_utils.get_input_tensor_by_name(request, name), read)

    def opened(self, tensor: Any, read: Reader) -> Any:
        """What `read` finds in a tensor. Raises ForgedError."""
        data = tensor.as_numpy().tobytes()
        if not hmac.compare_digest(data[: len(self._key)], self._key):
            raise ForgedError("this model is not for clients; ask the model `ensemble`")
        return read(data[len(self._key) :])


def failure(message: str, code: str = "INTERNAL") -> Any:
    """A response that is an error; `code` is one of TritonError's."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, getattr(pb_utils.TritonError, code)))


def final(sender: Any, response: Any = None) -> None:
    """Ends a decoupled request, with a last response or without."""
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
