"""/v1/completions, /tokenize and /detokenize, over a stand-in ensemble."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types import Completion

from client.wire import Piece
from python_backends.text.checkpoint import read_checkpoint
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask


def post(front: Front, path: str, **body: Any) -> tuple[int, Any]:
    status, _, said = ask(front, path, body)
    return status, said


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


def test_fields_of_chats_that_ask_for_nothing_are_taken(front: Front, ensemble: Ensemble) -> None:
    nothing = {"response_format": {"type": "text"}, "tools": [], "tool_choice": "auto"}
    assert post(front, "/v1/completions", prompt="a", **nothing)[0] == 200
    nothing = {"response_format": None, "tools": None, "tool_choice": "none"}
    assert post(front, "/v1/completions", prompt="a", **nothing)[0] == 200
    wanted = {"type": "json_object"}
    status, said = post(front, "/v1/completions", prompt="a", response_format=wanted)
    assert (status, said["error"]["param"]) == (400, "response_format")
    assert len(ensemble.asked) == 2


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


def ids_of(front: Front, *tokens: str) -> tuple[int, ...]:
    known = front.model.checkpoint.tokenizer
    return tuple(known.token_to_id(token) for token in tokens)


def test_an_echo_with_log_probabilities_begins_with_those_of_the_prompt(
    front: Front, sdk: openai.OpenAI, ensemble: Ensemble
) -> None:
    """The token that ends the answer is among them: programs such as lm-eval leave out the last one."""
    a, b, end = ids_of(front, "a", "b", "<|end|>")
    ensemble.pieces = (
        Piece(
            "aba",
            output_ids=(a,),
            output_log_probs=(-0.25,),
            top_ids=((a,),),
            top_log_probs=((-0.25,),),
            prompt_ids=(a, b),
            prompt_log_probs=(-1.0,),
            prompt_top_ids=((a,),),
            prompt_top_log_probs=((-0.5,),),
        ),
        Piece(
            "", "stop", output_ids=(end,), output_log_probs=(-2.0,), top_ids=((b,),), top_log_probs=((-1.5,),)
        ),
    )
    status, answer = post(front, "/v1/completions", prompt="ab", echo=True, logprobs=1)
    assert status == 200
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["a", "b", "a", "<|end|>"],
        "token_logprobs": [None, -1.0, -0.25, -2.0],
        "top_logprobs": [None, {"b": -1.0, "a": -0.5}, {"a": -0.25}, {"<|end|>": -2.0, "b": -1.5}],
        "text_offset": [0, 1, 2, 3],
    }
    [asked] = ensemble.asked
    assert (asked["return_prompt_log_probs"], asked["return_log_probs"]) == (True, True)
    assert (asked["num_top_log_probs"], asked["exclude_input_in_output"]) == (1, False)
    streamed = [
        chunk.choices[0].logprobs.token_logprobs
        for chunk in sdk.completions.create(model="toy", prompt="ab", echo=True, logprobs=1, stream=True)
    ]
    assert streamed == [[None, -1.0, -0.25], [-2.0]]


def test_tokens_of_an_echo_begin_where_their_text_does(front: Front, ensemble: Ensemble) -> None:
    """What the tokenizer has put before the text takes no place, nor does the second half of a character."""
    known = front.model.checkpoint.tokenizer
    begin = ids_of(front, "<|user|>")[0]
    halves = known.encode("é", add_special_tokens=False).ids
    ids = (begin, *halves, *ids_of(front, "a"), begin)
    ensemble.pieces = (
        Piece("éa<|user|>", "length", prompt_ids=ids, prompt_log_probs=(-1.0,) * (len(ids) - 1)),
    )
    _, answer = post(front, "/v1/completions", prompt="x", echo=True, logprobs=0, max_tokens=0)
    scores = answer["choices"][0]["logprobs"]
    offsets = [0] * (1 + len(halves)) + [1, 2]
    assert scores["text_offset"] == offsets
    assert (scores["tokens"][0], scores["tokens"][-2:]) == ("<|user|>", ["a", "<|user|>"])
    assert ensemble.asked[0]["max_tokens"] == 0


@pytest.mark.parametrize("echo", [True, False])
def test_only_an_echo_may_have_no_token_behind_it(front: Front, ensemble: Ensemble, echo: bool) -> None:
    ensemble.pieces = (Piece("ab", "length", num_input_tokens=2),)
    status, answer = post(front, "/v1/completions", prompt="ab", echo=echo, max_tokens=0)
    assert status == (200 if echo else 400)
    if echo:
        assert answer["choices"] == [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "length"}]
        assert answer["usage"]["completion_tokens"] == 0


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
        ({"prompt": "a", "max_tokens": -1, "echo": True}, "max_tokens"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
    ],
)
def test_a_bad_field_is_named(front: Front, body: dict[str, Any], param: str) -> None:
    status, answer = post(front, "/v1/completions", **body)
    assert (status, answer["error"]["param"]) == (400, param)


def test_a_refusal_of_the_ensemble_has_the_name_of_the_clients_field(
    front: Front, ensemble: Ensemble
) -> None:
    ensemble.error = "num_top_log_probs = 30: must be between 0 and 20 [invalid_value]"
    status, answer = post(front, "/v1/completions", prompt="a", logprobs=30)
    assert (status, answer["error"]["param"]) == (400, "logprobs")
    assert answer["error"]["message"] == "logprobs = 30: must be between 0 and 20"


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
