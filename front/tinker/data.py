"""What a forward or backward pass is asked for, of protobuf, and what it gave."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from front.errors import ProblemError, refused
from front.tinker.bodies import UNSUPPORTED, Numbered
from front.tinker.proto import FLOAT32, INT64, ForwardBackwardOutput, ForwardBackwardRequest
from python_backends.nouns import asks

TARGETS, LOG_PROBS, CONFIG = "target_tokens", "logprobs", "loss_fn_config"
# the loss → what each label has besides, the first of which may be missing for cross entropy
INPUTS = {"cross_entropy": ("weights",), "importance_sampling": ("advantages", LOG_PROBS)}
DTYPES: dict[int, np.dtype[Any]] = {FLOAT32: np.dtype(np.float32), INT64: np.dtype(np.int64)}
# the first fields: model_id, of at most 127 bytes, and seq_id, whose bytes but the last have the highest bit
HEAD = re.compile(rb"\x0a([\x00-\x7f])([ -~]+)\x10([\x80-\xff]{0,4}[\x00-\x7f])")


def read_request(body: bytes) -> Any:
    """A ForwardBackwardRequest. Raises ProblemError."""
    try:
        return ForwardBackwardRequest.FromString(body)
    except DecodeError:
        raise ProblemError(
            400, "the body must be protobuf: a ForwardBackwardRequest", "invalid_body"
        ) from None


def head_of(begun: bytes) -> Numbered | None:
    """Of a ForwardBackwardRequest that can't be read, or not whole. None: it does not begin as one."""
    found = HEAD.match(begun)
    if found is None or found[1][0] != len(found[2]):
        return None
    number = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(found[3]))
    return Numbered(found[2].decode(), number)


def learn_of(request: Any, most_tokens: int, num_rows: int) -> asks.Learn:
    """`num_rows`: of the embedding. Raises ProblemError, which names the first field that can't be taken."""
    if request.loss_fn not in INPUTS:
        said = f" = {request.loss_fn[:40]!r}: must be {' or '.join(INPUTS)}"
        raise refused("loss_fn", said, UNSUPPORTED)
    if request.loss_fn_config:
        raise refused(CONFIG, ": these losses have nothing to configure; leave it out", UNSUPPORTED)
    if not request.data:
        raise refused("data", ": must have at least one datum")
    parts = [_Datum(f"data[{i}]", each, most_tokens, num_rows) for i, each in enumerate(request.data)]
    found = [part.numbers(INPUTS[request.loss_fn]) for part in parts]
    drawn = [numbers[1] for numbers in found if len(numbers) == 2]
    return asks.Learn(
        lengths=[len(part.ids) for part in parts],
        ids=_joined([part.ids for part in parts]),
        labels=_joined([part.labels for part in parts]),
        weights=_joined([numbers[0] for numbers in found]),
        drawn_log_probs=_joined(drawn) if drawn else asks.NONE,
        learns=not request.forward_only,
    )


class _Datum:
    """Of protobuf. Raises ProblemError."""

    def __init__(self, place: str, datum: Any, most_tokens: int, num_rows: int) -> None:
        self._place = place
        self._tensors = {each.key: each.value for each in datum.loss_fn_inputs}
        chunks = datum.model_input
        if not all(chunk.HasField("encoded_text") for chunk in chunks):
            raise refused(f"{place}.model_input", ": must be tokens alone", UNSUPPORTED)
        tokens = b"".join(chunk.encoded_text.tokens for chunk in chunks)
        self.ids = self._numbers("model_input", tokens, np.dtype(np.int32))
        if not 1 <= len(self.ids) <= most_tokens:
            said = f": {len(self.ids)} tokens: must be between 1 and {most_tokens}, the model's context"
            raise refused(f"{place}.model_input", said)
        labels = self._tensor(TARGETS)
        for name, ids in (("model_input", self.ids), (TARGETS, labels)):
            if not 0 <= ids.min() <= ids.max() < num_rows:
                raise refused(f"{place}.{name}", f": token ids must be between 0 and {num_rows - 1}")
        self.labels = labels.astype(np.int32)

    def numbers(self, names: tuple[str, ...]) -> list[NDArray[np.float32]]:
        """[tokens] of each name. All weights are 1 where there are none."""
        if unknown := self._tensors.keys() - {TARGETS, *names}:
            said = f": must be {', '.join((TARGETS, *names))} for this loss"
            raise refused(f"{self._place}.loss_fn_inputs.{min(unknown)[:40]}", said, UNSUPPORTED)
        found = []
        for name in names:
            if name == "weights" and name not in self._tensors:
                found.append(np.ones(len(self.ids), np.float32))
            else:
                found.append(self._tensor(name).astype(np.float32))
            if not np.isfinite(found[-1]).all():
                raise refused(f"{self._place}.{name}", ": must be finite numbers")
        return found

    def _tensor(self, name: str) -> NDArray[Any]:
        if name not in self._tensors:
            raise refused(f"{self._place}.loss_fn_inputs.{name}", ": it is missing")
        tensor = self._tensors[name]
        if tensor.sparse_csr or tensor.dtype not in DTYPES:
            said = ": must be dense, one number for each token, of float32 or int64"
            raise refused(f"{self._place}.{name}", said, UNSUPPORTED)
        found = self._numbers(name, tensor.dense, DTYPES[tensor.dtype])
        if len(found) != len(self.ids):
            said = f": {len(found)} numbers: must be {len(self.ids)}, one for each token of model_input"
            raise refused(f"{self._place}.{name}", said)
        return found

    def _numbers(self, name: str, data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
        if len(data) % dtype.itemsize:
            raise refused(f"{self._place}.{name}", f": {len(data)} bytes are no {dtype} numbers")
        return np.frombuffer(data, dtype)


def _joined(parts: list[NDArray[Any]]) -> bytes:
    data: bytes = np.concatenate(parts).tobytes()
    return data


def output_of(answer: asks.Learned) -> bytes:
    """A ForwardBackwardOutput with the log-probability of each target."""
    offsets = np.cumsum([0, *answer.lengths], dtype=np.int64) * 4
    values = {"data": answer.log_probs, "offsets": offsets.tobytes(), "dtype": FLOAT32}
    record = {"fields": [{"key": LOG_PROBS, "value": values}], "num_datums": len(answer.lengths)}
    metrics = [{"key": "loss:sum", "value": answer.loss}]
    made = ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record], metrics=metrics)
    data: bytes = made.SerializeToString()
    return data
