"""The `detokenizer` model without a server: what its step ends with when a window can't be answered, and what
it remembers of streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from python_backends.nouns.request import Feedback, Finish, LogProbs, TokenWindow
from tests.pure.triton_models.conftest import Request

NOT_ANSWERED = "a part of the answer could not be turned into text or sent"


class Window(Request):
    """A Triton request with a window."""

    def is_cancelled(self) -> bool:
        return False


class Broken:
    def piece(self, window: TokenWindow) -> None:
        raise RuntimeError("Failed to increase the shared memory pool size")


class Link:
    """Keeps what the scheduler model would hear."""

    def __init__(self, *_: Any) -> None:
        self.heard: list[Feedback] = []

    def send(self, *feedback: Feedback, can_wait: bool = False) -> None:
        self.heard += [each for each in feedback if isinstance(each, Feedback)]

    def close(self) -> None:
        pass


@pytest.fixture
def model(pb_utils: ModuleType, run_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from python_backends.triton_models import detokenizer

    monkeypatch.setattr(detokenizer, "FeedbackEnd", Link)
    made = detokenizer.TritonPythonModel()
    made.initialize({})
    yield made
    made.finalize()


def asked(number: int = 1, finish: Finish = Finish.RUNNING) -> Window:
    from python_backends.triton_models.tensors import Blobs

    window = TokenWindow(number, np.array([65], np.int32), finish=finish)
    return Window([Blobs().tensor("token_window", window)])


def fail_to_ask() -> bool:
    raise RuntimeError("no shared memory is left")


@pytest.mark.parametrize(
    ("finish", "end"), [(Finish.RUNNING, (True, "")), (Finish.STOP, (True, f"{NOT_ANSWERED} [failed]"))]
)
def test_only_after_the_last_window_a_step_ends_with_an_error(
    model: Any, finish: Finish, end: tuple[bool, str]
) -> None:
    """Before it the scheduler model's step runs, and gets the error by the feedback."""
    model._detokenizer = Broken()
    request = asked(finish=finish)
    model.execute([request])
    assert request.sender.sent == [end]
    assert [feedback.error for feedback in model._link.heard] == [NOT_ANSWERED]


def test_a_client_that_cannot_be_asked_after_fails_no_step(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked()
    model._asked_s[1] = -1e9
    monkeypatch.setattr(request, "is_cancelled", fail_to_ask)
    model.execute([request])
    assert request.sender.sent == [(True, "")]
    assert [feedback.error for feedback in model._link.heard] == [NOT_ANSWERED]


def test_streams_are_forgotten_once_in_a_while_and_not_at_every_window(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: it takes a look at each."""
    from python_backends.triton_models import detokenizer

    now_s = 1000.0
    monkeypatch.setattr(detokenizer.time, "monotonic", lambda: now_s)
    model._forgot_s, model._asked_s = now_s, dict.fromkeys(range(10_000), now_s - 1)
    before = model._asked_s
    for number in range(3):
        model.execute([asked(number)])
    assert model._asked_s is before
    now_s += detokenizer.FORGET_AFTER_S
    model._asked_s[4] = now_s - 1
    model.execute([asked(5)])
    assert model._asked_s == {4: now_s - 1, 5: now_s}


def test_a_client_with_long_pauses_between_its_windows_is_asked_after(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where many streams wait and the detokenizer is slow."""
    from python_backends.triton_models import detokenizer

    now_s = 1000.0
    monkeypatch.setattr(detokenizer.time, "monotonic", lambda: now_s)
    for _ in range(3):
        now_s += 15.0
        for number in (1, 2):
            request = asked(number)
            monkeypatch.setattr(request, "is_cancelled", lambda: True)
            model.execute([request])
    assert [feedback.gone for feedback in model._link.heard] == [False] * 2 + [True] * 4


@pytest.mark.parametrize(("wants", "expected"), [(False, None), (True, [[[66, 67]]])])
def test_the_ids_of_new_tokens_are_for_those_who_want_them(model: Any, wants: bool, expected: Any) -> None:
    from python_backends.text.detokenize.detokenizer import Piece
    from python_backends.triton_models.detokenizer import _response, _tells_of_tokens

    ids = np.array([64, 65, 66, 67, 68], np.int32)
    window = TokenWindow(1, ids, start=3, num_sent=5, wants_output_ids=wants)
    piece = Piece("", stopped_at=7)  # the last token is after the stop word
    assert _tells_of_tokens(window, piece, None) == wants
    tensors = {tensor.own_name: tensor.values for tensor in _response(window, piece, None).output_tensors}
    assert (tensors["output_ids"].tolist() if wants else tensors.get("output_ids")) == expected


def test_log_probabilities_that_an_engine_does_not_tell_are_numbers(model: Any) -> None:
    from python_backends.triton_models import detokenizer

    none = np.full(1, np.nan, np.float32)
    window = TokenWindow(1, np.array([65], np.int32))
    scores = LogProbs(none, np.array([-1], np.int32), none)
    tensors = detokenizer._log_probs(window, detokenizer.Piece(""), scores)
    told = {tensor.name(): tensor.as_numpy() for tensor in tensors}
    assert [told[name].item() for name in ("output_log_probs", "cum_log_probs", "top_log_probs")] == 3 * [
        -9999
    ]
    assert told["top_ids"].item() == -1


def test_the_prompts_log_probabilities_are_outputs_of_their_own(model: Any) -> None:
    from python_backends.text.detokenize.detokenizer import Piece
    from python_backends.triton_models.detokenizer import _response, _tells_of_tokens

    ids, values = np.array([5, 6, 7], np.int32), np.array([-0.5, -1.5], np.float32)
    window = TokenWindow(
        1,
        np.zeros(0, np.int32),
        emit=False,
        prompt_ids=ids,
        prompt_log_probs=LogProbs(values, np.array([6, 9], np.int32), values),
    )
    assert _tells_of_tokens(window, Piece(""), None)
    found = _response(window, Piece(""), None).output_tensors
    tensors = {tensor.own_name: tensor.values.tolist() for tensor in found}
    assert tensors["prompt_ids"] == [[5, 6, 7]]
    assert tensors["prompt_log_probs"] == [[-0.5, -1.5]]
    assert tensors["prompt_top_ids"] == [[[6], [9]]]
    assert tensors["prompt_top_log_probs"] == [[[-0.5], [-1.5]]]


def test_a_prompt_of_one_token_has_its_id_alone(model: Any) -> None:
    from python_backends.triton_models.detokenizer import _of_prompt

    nothing = LogProbs(np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(0, np.float32))
    assert [tensor.name() for tensor in _of_prompt(np.array([5], np.int32), nothing)] == ["prompt_ids"]
