"""What the `tokenizer` model answers to the inputs and parameters of Triton's requests."""

from __future__ import annotations

import threading
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from python_backends.engine.choice import choose
from python_backends.guides.guides import Guides
from python_backends.nouns.request import ModelLimits
from python_backends.settings import ClusterSettings, ModelSettings, Settings, dump
from python_backends.watching.board import Board
from python_backends.watching.instance_state import InstanceRecord, State
from python_backends.watching.launcher_record import LauncherRecord
from tests.pure.triton_models.conftest import Request, Response, Tensor

TRITONS = {
    "priority": 1,
    "sequence_id": 5,
    "sequence_start": True,
    "sequence_end": False,
    "binary_data_output": False,
}
TRITONS |= {"triton_enable_empty_final_response": True, "id": "mine"}


def new_model() -> Any:
    from python_backends.triton_models.tokenizer import TritonPythonModel

    made = TritonPythonModel()
    made.initialize({})
    return made


@pytest.fixture
def model(pb_utils: ModuleType, run_directory: Path) -> Any:
    return new_model()


def text_input(text: str) -> Tensor:
    return Tensor("text_input", np.array([[text.encode()]], object))


def asked(text: str = "hello", timeout_us: int = 0, **parameters: Any) -> Request:
    return Request([text_input(text)], parameters, timeout_us)


def error(response: Response) -> str:
    return "" if response.error is None else response.error.message()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("tempreature", "temperature"),
        ("max_new_tokens", "max_tokens"),
        ("stop", "stop_words"),
        ("logprobs", "return_log_probs"),
        ("Temperature", "temperature"),
        ("time_out", "timeout"),
        ("presencePenalty", "presence_penalty"),
    ],
)
def test_an_unknown_field_of_http_is_refused_by_name_with_the_nearest_known_one(
    model: Any, name: str, nearest: str
) -> None:
    (response,) = model.execute([asked(**{name: 1})])
    assert error(response) == f"{name!r}: there is no such field; did you mean {nearest}? [invalid_value]"


@pytest.mark.parametrize("name", ["n", "q" * 100_000])
def test_an_unknown_field_like_none_is_refused_without_a_suggestion(model: Any, name: str) -> None:
    (response,) = model.execute([asked(**{name: 4})])
    assert error(response).endswith("there is no such field [invalid_value]")
    assert len(error(response)) < 100


def test_an_input_that_comes_as_a_parameter_is_refused(model: Any) -> None:
    (response,) = model.execute([asked(temperature=0.7)])
    assert error(response) == "temperature: must be an input of the request, not a parameter [invalid_value]"


def test_parameters_of_triton_are_no_fields(model: Any) -> None:
    (response,) = model.execute([asked(**TRITONS, timeout=5_000_000)])
    assert not error(response)


@pytest.mark.parametrize("value", [False, True, "", "5", 0.0, -1, 1.5])
def test_a_timeout_of_another_type_is_refused(model: Any, value: Any) -> None:
    (response,) = model.execute([asked(timeout=value)])
    assert (
        error(response)
        == f"timeout = {value!r}: must be a whole number between 0 and 1000000000000000 [invalid_value]"
    )


@pytest.mark.parametrize("request_", [asked(timeout=0), asked(timeout=7), asked(timeout_us=7)])
def test_a_timeout_may_come_as_a_parameter_or_with_the_request(model: Any, request_: Request) -> None:
    (response,) = model.execute([request_])
    assert not error(response)


def test_a_request_with_an_unknown_field_is_refused_alone(model: Any) -> None:
    answers = model.execute([asked(), asked(tempreature=1.0), asked("world")])
    assert [bool(error(answer)) for answer in answers] == [False, True, False]


def test_a_request_whose_id_can_not_be_read_fails_alone(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = asked()
    monkeypatch.setattr(wrong, "request_id", b"a\xff".decode)  # as the backend reads it
    answers = model.execute([asked(), wrong, asked("world")])
    assert [bool(error(each)) for each in answers] == [False, True, False]


def test_each_request_of_a_batch_is_watched_by_itself(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of long prompts takes as long as all of them together."""
    calls = []
    door, life = model._door, model.life

    def answer(fields: dict[str, Any]) -> Any:
        calls.append(life._num_calls)
        return door.answer(fields)

    monkeypatch.setattr(model, "_door", Mock(answer=answer))
    model.execute([asked(), asked("world"), asked()])
    assert len(set(calls)) == 3
    assert not life._in_call


def test_a_request_that_can_not_be_read_by_a_fault_of_ours_fails_alone(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = model._door

    def answer(fields: dict[str, Any]) -> Any:
        return {}["fault"] if fields["text_input"] == b"world" else door.answer(fields)

    monkeypatch.setattr(model, "_door", Mock(answer=answer))
    answers = model.execute([asked(), asked("world"), asked()])
    assert [bool(error(each)) for each in answers] == [False, True, False]
    assert error(answers[1]) == "the request can't be read; the server's log says more [failed]"


def test_each_refused_request_is_counted_by_its_reason(model: Any, launcher: LauncherRecord) -> None:
    counts = model._metrics._counts
    model.execute([asked(), asked(tempreature=1.0), asked(max_tokens=10**9), Request([])])
    assert {reason: count.value for reason, count in counts.items() if count.value} == {"invalid": 3}
    launcher.drain()
    model.execute([asked(), asked()])
    assert counts["shutting_down"].value == 2


def test_a_guide_that_is_not_compiled_in_time_may_be_asked_for_again(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(Guides, "_newly_compiled", lambda *_: ended.wait())
    monkeypatch.setattr("python_backends.guides.guides.COMPILE_S", 0.1)
    guide = {"guided_decoding_guide_type": b"regex", "guided_decoding_guide": b"a"}
    inputs = [Tensor(name, np.array([[value]], object)) for name, value in guide.items()]
    assert error(model.execute([Request([text_input("hello"), *inputs])])[0]).endswith(
        "it may be compiled a moment later [queue_full]"
    )
    ended.set()
    assert model._metrics._counts["queue_full"].value == 1


def test_a_count_that_fails_refuses_no_other_request(model: Any) -> None:
    model._metrics._counts = {}
    wrong, right = model.execute([asked(tempreature=1.0), asked()])
    assert "tempreature" in error(wrong)
    assert not error(right)


@pytest.mark.parametrize("ready", range(3))
def test_the_limits_are_those_of_any_instance_that_is_ready(
    pb_utils: ModuleType, run_directory: Path, monkeypatch: pytest.MonkeyPatch, ready: int
) -> None:
    """Not those of number 0 alone, which may be starting again, given up, or not wanted. The checkpoint has a
    context of 128 tokens, the engine of 40.
    """
    board = Board()
    monkeypatch.setattr(Board, "inherited", staticmethod(lambda: board))
    InstanceRecord(board, 1).write_on(State.STARTING)
    InstanceRecord(board, ready).write(State.READY, ModelLimits(40, 448, 4, 100, 16))
    model_settings = ModelSettings(str(run_directory.parent / "model"))
    settings = Settings(model=model_settings, cluster=ClusterSettings(instances=1, max_instances=3))
    dump(choose(settings).settings, run_directory / "settings.json")
    fitting, longer = (
        Request([text_input("hello"), Tensor("max_tokens", np.array([[count]], np.int32))])
        for count in (20, 60)
    )
    made = new_model()
    answers = made.execute([fitting, longer])
    made.finalize()
    assert error(answers[0]) == ""
    assert error(answers[1]).startswith("max_tokens = 60: must be ")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("", ""), ("mine-1", "mine-1"), ("\x1b[2Ja é", "?[2Ja??"), ("x" * 1000, "x" * 128)],
)
def test_what_a_client_calls_its_request_goes_along_without_control_characters(
    model: Any, given: str, expected: str
) -> None:
    from python_backends.nouns.messages import reader
    from python_backends.nouns.request import Request as Noun

    request = asked()
    request.id_ = given
    [response] = model.execute([request])
    assert model._blobs.opened(response.output_tensors[0], reader(Noun)).client_id == expected
