"""Conversion between Triton's tensors and nouns, and other functions that the models share."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import hmac
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends.nouns.messages import Reader, pack
from python_backends.nouns.request import RefusedError, Request, TooLongError
from python_backends.settings import Settings, read_settings
from python_backends.wires.run_directory import KEY, SETTINGS

SIGNATURE_BYTES = 16
VALID_NS = 300 * 10**9  # what needs longer to the scheduler model has to be sent again
NOT_FOR_CLIENTS = "this model is not for clients; ask the model `ensemble`"

FAILED, QUEUE_FULL, SHUTTING_DOWN = "failed", "queue_full", "shutting_down"
ENGINE_FAILED = "engine_failed"  # whenever it ran this request: sent again, it would end engines again
REFUSED = RefusedError.code
CODES = {  # of errors, by what Triton calls them
    REFUSED: "INVALID_ARG",
    TooLongError.code: "INVALID_ARG",
    QUEUE_FULL: "UNAVAILABLE",
    SHUTTING_DOWN: "UNAVAILABLE",
    FAILED: "INTERNAL",
    ENGINE_FAILED: "INTERNAL",
}

RUN_DIRECTORY = "GAPLESS_RUN_DIRECTORY"  # environment variable, set by the launcher


class ForgedError(ValueError):
    """A tensor that only our own processes may write, written by a client. `code` is one of CODES."""

    code = REFUSED


class LateError(ForgedError):
    """One that came too late to be known as unused; after a pause of the machine it may be no client's."""

    code = FAILED


def run_directory() -> Path:
    return Path(os.environ[RUN_DIRECTORY])


def hide_shared_memory() -> None:
    """Keeps other users of this host from reading the shared memory of the models, through which prompts and
    answers pass. Triton makes it readable for all, whatever the umask. To be called by `initialize`, before a
    request can come.
    """
    for path in Path("/dev/shm").glob(f"{glob.escape(run_directory().resolve().name)}-*"):
        with contextlib.suppress(OSError):  # of a model that is just unloaded
            path.chmod(0o600)


def effective_settings() -> Settings:
    """Returns the settings, with directories as this process can open them."""
    settings = read_settings(run_directory() / SETTINGS)
    return replace(
        settings,
        model=replace(settings.model, directory=_as_encoded_here(settings.model.directory)),
        prediction=replace(settings.prediction, directory=_as_encoded_here(settings.prediction.directory)),
    )


def _as_encoded_here(path: str) -> str:
    """In a stub, Python takes names of files to be ASCII, whatever the locale says. Other bytes are then
    written as surrogates.
    """
    return os.fsdecode(path.encode("utf-8", "surrogateescape"))


class Blobs:
    """Our messages as tensors [1, bytes]: a signature of SIGNATURE_BYTES, then the message.

    What a Triton model returns can reach a client, so the tensor holds no secret. The signature is keyed
    BLAKE2b of the message. Each tensor name has its own key, made from the secret of the run directory: a
    message of one model is not accepted by another one.
    """

    def __init__(self) -> None:
        self._secret = (run_directory() / KEY).read_bytes()
        self._keys: dict[str, bytes] = {}  # by tensor name

    def tensor(self, name: str, message: Any) -> Any:
        data = pack(message)
        return pb_utils.Tensor(
            name, np.frombuffer(self._signature(name, data) + data, np.uint8).reshape(1, -1)
        )

    def message(self, request: Any, name: str, read: Reader) -> Any:
        """What `read` finds in input `name` of a Triton request. Raises
        ForgedError if none of our processes wrote it.
        """
        return self.opened(pb_utils.get_input_tensor_by_name(request, name), read)

    def opened(self, tensor: Any, read: Reader) -> Any:
        """What `read` finds in a tensor. Raises ForgedError."""
        data = tensor.as_numpy().tobytes()
        signature, data = data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(tensor.name(), data)):
            raise ForgedError(NOT_FOR_CLIENTS)
        return read(data)

    def _signature(self, name: str, data: bytes) -> bytes:
        if name not in self._keys:
            self._keys[name] = hashlib.blake2b(name.encode(), key=self._secret).digest()
        return hashlib.blake2b(data, key=self._keys[name], digest_size=SIGNATURE_BYTES).digest()


class SingleUse:
    """Refuses a request that has come before: a client could have got its
    message from model `tokenizer` and sent it again.
    """

    def __init__(self) -> None:
        self._arrivals_ns: dict[int, int] = {}  # by request id, in order of acceptance

    def check(self, request: Request, now_ns: int) -> None:
        """`now_ns` is of the clock of `arrival_ns`. Raises ForgedError."""
        if request.request_id in self._arrivals_ns:
            raise ForgedError(NOT_FOR_CLIENTS)
        if now_ns - request.arrival_ns > VALID_NS:
            raise LateError(f"the request was on its way for more than {VALID_NS // 10**9} s; send it again")
        self._arrivals_ns[request.request_id] = now_ns
        while next(iter(self._arrivals_ns.values())) < now_ns - VALID_NS:
            del self._arrivals_ns[next(iter(self._arrivals_ns))]


def failure(message: str, code: str = FAILED) -> Any:
    """A response that is an error. `code` is one of CODES, and stands behind the message: over HTTP and in
    streams Triton sends no code of its own.
    """
    kind = getattr(pb_utils.TritonError, CODES[code])
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{message} [{code}]", kind))


def final(sender: Any, response: Any = None) -> None:
    """Ends a decoupled request, with a last response or without."""
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
