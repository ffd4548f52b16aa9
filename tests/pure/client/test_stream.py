"""The example of a minimal client cancels only streams that go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerException

from client import stream as program


class Piece:
    def __init__(self, text: str, finish_reason: str | None = None) -> None:
        self._outputs = {"text_output": text, "finish_reason": finish_reason}

    def as_numpy(self, name: str) -> Any:
        value = self._outputs[name]
        return None if value is None else np.array([value.encode()], object)


class Scripted:
    """Triton's client, with one script of answers; notes how each stream is stopped."""

    def __init__(self, answers: Sequence[tuple[Any, Any]]) -> None:
        self._answers = answers
        self.cancels: list[bool] = []

    def start_stream(self, tell: Callable[[Any, Any], None]) -> None:
        self._tell = tell

    def async_stream_infer(self, _model: str, _inputs: list[Any]) -> None:
        for result, error in self._answers:
            self._tell(result, error)

    def stop_stream(self, cancel_requests: bool = False) -> None:
        self.cancels.append(cancel_requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_stream()


def scripted(monkeypatch: pytest.MonkeyPatch, *answers: tuple[Any, Any]) -> Scripted:
    made = Scripted(answers)
    monkeypatch.setattr("client.stream.triton.InferenceServerClient", lambda _url, channel_args: made)
    return made


def test_a_whole_answer_is_printed_and_not_cancelled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = scripted(monkeypatch, (Piece("Pa"), None), (Piece("ris", "stop"), None))
    program.stream("127.0.0.1:1", "x", 4)
    assert capsys.readouterr().out == "Paris\n"
    assert client.cancels == [False]


def test_a_request_that_failed_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    client = scripted(monkeypatch, (None, InferenceServerException("full")))
    with pytest.raises(InferenceServerException, match="full"):
        program.stream("127.0.0.1:1", "x", 4)
    assert client.cancels == [False]


def test_an_answer_that_is_interrupted_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_answers: object) -> None:
        raise KeyboardInterrupt

    client = scripted(monkeypatch)
    monkeypatch.setattr(program, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program.stream("127.0.0.1:1", "x", 4)
    assert client.cancels == [True, False]
