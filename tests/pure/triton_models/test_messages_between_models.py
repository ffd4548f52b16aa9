"""What model `tokenizer` returns can reach a client: nothing in it helps
to make a message that another model accepts.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from python_backends.nouns.messages import pack, reader
from python_backends.nouns.request import Request, Sampling, TokenWindow
from python_backends.wires.run_directory import KEY
from tests.pure.triton_models.conftest import Request as TritonRequest
from tests.pure.triton_models.conftest import Tensor

READ = {"request": reader(Request), "token_window": reader(TokenWindow)}
ANOTHER = Request(7, np.array([2_000_000_000], np.int32), Sampling(2_000_000_000))


@pytest.fixture
def tensors(pb_utils: ModuleType, run_directory: Path) -> Any:
    from python_backends.triton_models import tensors

    return tensors


@pytest.fixture
def message(tensors: Any) -> bytes:
    """What a client gets that calls model `tokenizer`."""
    from python_backends.triton_models.tokenizer import TritonPythonModel

    model = TritonPythonModel()
    model.initialize({})
    [response] = model.execute([TritonRequest([Tensor("text_input", np.array([[b"hello"]], object))])])
    assert response.error is None
    [tensor] = response.output_tensors
    return bytes(tensor.as_numpy().tobytes())


def accepted(tensors: Any, message: bytes, name: str = "request") -> Any:
    request = TritonRequest([Tensor(name, np.frombuffer(message, np.uint8)[None])])
    return tensors.Blobs().message(request, name, READ[name])


def test_the_answer_of_the_tokenizer_does_not_contain_the_secret(message: bytes, run_directory: Path) -> None:
    secret = (run_directory / KEY).read_bytes()
    pieces = [secret[i : i + 8] for i in range(len(secret) - 7)]
    assert not [piece for piece in pieces if piece in message]


def test_the_scheduler_accepts_a_message_as_the_tokenizer_wrote_it(tensors: Any, message: bytes) -> None:
    assert len(accepted(tensors, message).prompt) > 0


@pytest.mark.parametrize("at", [0, 15, 16, 40, -1])
def test_a_message_with_one_changed_bit_is_refused(tensors: Any, message: bytes, at: int) -> None:
    changed = bytearray(message)
    changed[at] ^= 1
    with pytest.raises(tensors.ForgedError):
        accepted(tensors, bytes(changed))


def test_another_request_after_a_signature_that_a_client_has_seen_is_refused(
    tensors: Any, message: bytes
) -> None:
    with pytest.raises(tensors.ForgedError):
        accepted(tensors, message[: tensors.SIGNATURE_BYTES] + pack(ANOTHER))


@pytest.mark.parametrize("cut", [0, 1, 15, 16])
def test_a_message_that_is_too_short_is_refused(tensors: Any, message: bytes, cut: int) -> None:
    with pytest.raises(tensors.ForgedError):
        accepted(tensors, message[:cut])


def test_the_detokenizer_refuses_a_message_for_the_scheduler(tensors: Any, message: bytes) -> None:
    with pytest.raises(tensors.ForgedError):
        accepted(tensors, message, "token_window")


def test_a_message_is_accepted_once(tensors: Any, message: bytes) -> None:
    request, used, now_ns = accepted(tensors, message), tensors.SingleUse(), time.monotonic_ns()
    used.check(request, now_ns)
    for later_s in (0, 1, 299):
        with pytest.raises(tensors.ForgedError):
            used.check(request, now_ns + later_s * 10**9)


def test_a_message_is_valid_for_five_minutes_and_then_forgotten(tensors: Any) -> None:
    used, step_ns = tensors.SingleUse(), 10**9
    for i in range(1000):  # one a second
        used.check(ANOTHER.changed(request_id=i, arrival_ns=i * step_ns), i * step_ns)
    assert len(used._arrivals_ns) <= 302
    for i in range(1000):
        with pytest.raises(tensors.ForgedError):
            used.check(ANOTHER.changed(request_id=i, arrival_ns=i * step_ns), 1000 * step_ns)
