"""What is packed comes out the same, and what nobody of ours wrote is refused."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
import pytest

from python_backends.instance.loop import Instance
from python_backends.moving.copies import Copies
from python_backends.moving.moves import Moves
from python_backends.nouns.load import Load
from python_backends.nouns.messages import (
    AnswerRecord,
    BadMessageError,
    BetweenInstances,
    FromInstance,
    Hello,
    LengthAnswer,
    Predicted,
    Submit,
    ToInstance,
    frame_reader,
    pack,
    reader,
)
from python_backends.nouns.request import (
    Feedback,
    Finish,
    LengthPrediction,
    LogProbs,
    ModelLimits,
    Request,
    Sampling,
    Subject,
    TokenWindow,
)
from python_backends.nouns.step import PromptLogProbs, RowLogProbs, Started, Tokens


def same(a: object, b: object) -> bool:
    if isinstance(a, msgspec.Struct):
        return type(a) is type(b) and all(
            same(getattr(a, name), getattr(b, name)) for name in a.__struct_fields__
        )
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.tolist() == b.tolist()
    return type(a) is type(b) and a == b


REQUEST = Request(
    request_id=(1 << 62) + 1,
    prompt=np.array([1, 2, 3], np.int32),
    sampling=Sampling(
        max_tokens=5,
        temperature=0.5,
        seed=(1 << 63) - 1,
        stop_ids=(2, 7),
        bad_words=((5,), (1, 2)),
        logit_bias=((3, -1.5),),
    ),
    stop_words=("\n", "हिन्दी"),
)


SCORES = RowLogProbs(
    np.array([1], np.int32),
    LogProbs(np.array([-0.5], np.float32), np.array([3, 4], np.int32), np.array([-0.5, -1.5], np.float32)),
)


@pytest.mark.parametrize(
    "message",
    [
        REQUEST,
        TokenWindow(1, np.array([], np.int32), finish=Finish.STOP),
        TokenWindow(1, np.array([5], np.int32), log_probs=SCORES.values, cum_log_prob=-0.25),
        TokenWindow(1, np.array([5], np.int32), sent_log_probs=np.array([-0.5], np.float32)),
        TokenWindow(
            1, np.array([5], np.int32), prompt_ids=np.array([7, 3], np.int32), prompt_log_probs=SCORES.values
        ),
        Feedback(1, 5, stopped_at=3, gone=True),
        Hello(ModelLimits(2048, 512, 16, 100, 16, "x")),
        Hello(),
        Submit(REQUEST, np.array([4], np.int32), 2),
        Subject("Say it", "hello", 3, 20),
        LengthAnswer(
            LengthPrediction(3.5, np.array([1, 2, 3, 4, 5, 9], np.float32)),
            2,
            np.ones(21, np.float32),
            "packaged",
        ),
        AnswerRecord(1.5, "Say it", 9, 3, 20, Finish.STOP, LengthAnswer(), "hello"),
        Predicted(1, LengthPrediction(3.5, np.array([1, 2, 3, 4, 5, 9], np.float32))),
        Started(1, 0, 16),
        Tokens(*(np.array([1, 2], kind) for kind in (np.int64, np.int32, np.int32, np.int32, np.uint8))),
        Tokens(
            *(np.array([1, 2], kind) for kind in (np.int64, np.int32, np.int32, np.int32, np.uint8)), SCORES
        ),
        PromptLogProbs(*(np.array([1], kind) for kind in (np.int64, np.int32, np.int32)), SCORES.values),
        Load(num_running=3),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_comes_out_as_it_went_in(message: object) -> None:
    assert same(reader(type(message))(pack(message)), message)


def test_unknown_messages_of_a_frame_are_left_out_and_told() -> None:
    unknown: list[BadMessageError] = []
    read = frame_reader(FromInstance, unknown.append)
    frame = pack(("a", "b", 5, (Load(1), ("News of tomorrow", 1), Started(1, 0, 16))))
    assert read(frame) == ("a", "b", 5, (Load(1), Started(1, 0, 16)))
    assert "News of tomorrow" in str(*unknown)
    for bad in (pack(("a", "b")), pack((1, "b", 5, (Load(1),))), b"hello"):
        with pytest.raises(BadMessageError):
            read(bad)


def kinds_asked_for(function: Callable[..., Any]) -> set[str]:
    """The names of the classes that `function` asks for by isinstance."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = [call.args[1] for call in calls if getattr(call.func, "id", "") == "isinstance"]
    return {node.id for each in asked for node in ast.walk(each) if isinstance(node, ast.Name)}


def names(union: Any) -> set[str]:
    return {kind.__name__ for kind in get_args(union)}


def test_an_instance_takes_every_message_that_it_can_be_told_and_no_other() -> None:
    moves = get_type_hints(Moves.handle)["message"]
    assert kinds_asked_for(Instance._take) == names(ToInstance) - {"Hello"} | {"NewSession"}
    assert kinds_asked_for(Moves.handle) | {"AbortMove"} == names(moves) <= names(ToInstance)
    taken = names(get_type_hints(Copies._take_blocks)["message"]) | names(
        get_type_hints(Copies._take_answer)["message"]
    )
    assert taken == names(BetweenInstances)


def test_numbers_of_numpy_come_out_as_plain_ones() -> None:
    said = LengthPrediction(np.float64(3.5), np.ones(6, np.float32))
    mean = reader(LengthPrediction)(pack(said)).mean
    assert type(mean) is float
    assert mean == 3.5
    assert reader(Load)(pack(Load(num_running=np.int64(3)))) == Load(num_running=3)  # type: ignore[arg-type]


WINDOW = TokenWindow(1, np.array([5, 6], np.int32))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\xc7\x01\x02\xff",
        b"GET / HTTP/1.1",
        pack(WINDOW)[:-3],
        pack(REQUEST),
        pack(TokenWindow(1, np.array([5, 6], np.int64))),  # type: ignore[arg-type]
        pack(TokenWindow(1, [5, 6])),  # type: ignore[arg-type]
        pack(WINDOW).replace(b"\xd7\x00", b"\xd7\x09"),  # an array of a type that there is not
        pack(WINDOW).replace(b"\xd7\x00", b"\xd7\x07"),
    ],
)
def test_whatever_does_not_belong_on_a_wire_is_refused(frame: bytes) -> None:
    with pytest.raises(BadMessageError):
        reader(TokenWindow)(frame)
