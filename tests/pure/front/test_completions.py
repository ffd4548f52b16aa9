"""/v1/completions, /tokenize and /detokenize, over a stand-in ensemble."""

from __future__ import annotations

import http.client
import json
from typing import Any

import openai
import pytest
from openai.types import Completion

from client.wire import Piece
from python_backends.text.checkpoint import read_checkpoint
from tests.support.ensemble import Ensemble, Front


def post(front: Front, path: str, **body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    made = answer.status, json.loads(answer.read())
    connection.close()
    return made


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("a", [{"text_input": "a"}]),
        (["a", "b"], [{"text_input": "a"}, {"text_input": "b"}]),
        ([1, 2], [{"input_ids": (1, 2)}]),
        ([[1, 2], [3]], [{"input_ids": (1, 2)}, {"input_ids": (3,)}]),
    ],
)
def test_a_prompt_is_a_text_or_ids_or_several(
    sdk: openai.OpenAI, ensemble: Ensemble, prompt: Any, asked: list[dict[str, Any]]
) -> None:
    whole = sdk.completions.create(model="toy", prompt=prompt)
    found = [
        {name: value for name, value in each.items() if name in ("text_input", "input_ids")}
        for each in ensemble.asked
    ]
    assert sorted(found, key=str) == asked
    assert {each["max_tokens"] for each in ensemble.asked} == {16}
    assert [choice.text for choice in whole.choices] == ["readAll\u2028Lines"] * len(asked)
    assert whole.usage.prompt_tokens == 14 * len(asked)
    chunks = sdk.completions.create(
        model="toy", prompt=prompt, stream=True, stream_options={"include_usage": True}
    )
    texts, usage = [""] * len(asked), None
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
        usage = chunk.usage
    assert texts == [choice.text for choice in whole.choices]
    assert usage == whole.usage


def test_choices_of_the_first_prompt_come_first(sdk: openai.OpenAI, ensemble: Ensemble) -> None:
    whole = sdk.completions.create(model="toy", prompt=["a", "b"], n=2, seed=5, echo=True)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    asked = sorted((each["text_input"], each["seed"]) for each in ensemble.asked)
    assert asked == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]
    assert not any(each["exclude_input_in_output"] for each in ensemble.asked)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (28, 20)


def test_log_probabilities_are_lists_by_token(front: Front, ensemble: Ensemble) -> None:
    tokenizer = front.model.checkpoint.tokenizer
    first, second = tokenizer.encode("a", add_special_tokens=False).ids[0], tokenizer.token_to_id("b")
    ensemble.pieces = (
        Piece(
            "ab",
            "length",
            output_ids=(first, second),
            output_log_probs=(-1.0, -0.5),
            top_ids=((second,), (second,)),
            top_log_probs=((-0.25,), (-0.5,)),
        ),
    )
    status, answer = post(front, "/v1/completions", prompt="x", logprobs=1)
    Completion.model_validate(answer, strict=True)
    assert status == 200
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-1.0, -0.5],
        "top_logprobs": [{"a": -1.0, "b": -0.25}, {"b": -0.5}],
        "text_offset": [0, 1],
    }
    assert ensemble.asked[0]["num_top_log_probs"] == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"prompt": ["a"] * 9, "n": 128}, "prompt"),
        ({"prompt": [1 << 40]}, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
    ],
)
def test_a_bad_field_is_named(front: Front, body: dict[str, Any], param: str) -> None:
    status, answer = post(front, "/v1/completions", **body)
    assert (status, answer["error"]["param"]) == (400, param)


def test_tokens_are_those_of_the_door_and_come_back_as_text(front: Front) -> None:
    known = read_checkpoint(front.model.checkpoint.directory).tokenizer
    text = "def read(self): é"
    ids = known.encode(text, add_special_tokens=False).ids
    assert post(front, "/tokenize", prompt=text, model="toy") == (
        200,
        {"count": len(ids), "max_model_len": 2048, "tokens": ids},
    )
    assert post(front, "/detokenize", tokens=ids) == (200, {"prompt": text})
    marks = [known.token_to_id("<|user|>"), *known.encode("hi", add_special_tokens=False).ids]
    chat = post(front, "/tokenize", messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    assert chat[1]["tokens"] == [*marks, known.token_to_id("<|end|>"), known.token_to_id("<|assistant|>")]
    typed = post(front, "/tokenize", prompt="<|user|>")[1]["tokens"]
    assert known.token_to_id("<|user|>") not in typed, "what users type is text"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": ""}, "prompt"),
        ("/tokenize", {"messages": [{"role": "x", "content": "a"}]}, "messages[0].role"),
        ("/detokenize", {"tokens": [512]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
def test_what_can_not_be_tokenized_is_refused(
    front: Front, path: str, body: dict[str, Any], param: str
) -> None:
    status, answer = post(front, path, **body)
    assert (status, answer["error"]["param"]) == (400, param)
