"""Chats by OpenAI's own client, over a stand-in ensemble: what it is asked, what comes back."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from client.wire import Piece
from front import responses
from front.asks import ChatAsk
from front.keys import Keys, read_keys
from front.model import defaults
from front.parameters import parameters_of
from python_backends.nouns.request import ModelLimits
from python_backends.settings import SettingsError
from tests.pure.front.conftest import ANSWER, KEY, MESSAGES
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask, sent
from tests.support.text.templates import TOOLS, template

CHAT = "/v1/chat/completions"


def post(front: Front, body: bytes, **headers: str) -> tuple[int, dict[str, str], Any]:
    return ask(front, CHAT, body, **headers)


def lines_of(front: Front, **body: Any) -> list[str]:
    """The events of a stream as they are on the wire."""
    return sent(front, CHAT, {**body, "stream": True})[2].removesuffix("\n\n").split("\n\n")


# --- answers


def test_a_joined_stream_is_the_whole_answer_and_both_fit_openais_types_strictly(
    sdk: openai.OpenAI, front: Front
) -> None:
    whole = sdk.chat.completions.create(model="toy", messages=MESSAGES)
    stream = sdk.chat.completions.create(model="toy", messages=MESSAGES, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content == "readAll\u2028Lines"
    *events, end = lines_of(front, model="toy", messages=MESSAGES)
    assert end == "data: [DONE]"
    chunks = [json.loads(each.removeprefix("data: ")) for each in events]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    ChatCompletion.model_validate(post(front, json.dumps({"messages": MESSAGES}).encode())[2], strict=True)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


def test_what_readers_take_for_the_end_of_a_line_is_escaped(front: Front) -> None:
    assert any("All\\u2028" in line for line in lines_of(front, messages=MESSAGES))


def test_usage_is_the_same_in_a_stream_and_in_a_whole_answer(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(model="toy", messages=MESSAGES)
    *chunks, last = sdk.chat.completions.create(
        model="toy", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    assert last.usage == whole.usage
    assert (last.choices, last.usage.prompt_tokens, last.usage.completion_tokens) == ([], 14, 5)
    assert last.usage.prompt_tokens_details.cached_tokens == 8
    assert {chunk.usage for chunk in chunks} == {None}


def test_several_choices_have_seeds_that_follow_each_other_and_count_the_prompt_once(
    sdk: openai.OpenAI, ensemble: Ensemble
) -> None:
    whole = sdk.chat.completions.create(model="toy", messages=MESSAGES, n=3, seed=7)
    assert sorted(asked["seed"] for asked in ensemble.asked) == [7, 8, 9]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (14, 15)
    texts = {0: "", 1: "", 2: ""}
    for chunk in sdk.chat.completions.create(model="toy", messages=MESSAGES, n=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert set(texts.values()) == {"readAll\u2028Lines"}


def test_the_roles_of_all_choices_come_first_as_openais_accumulator_wants_them(sdk: openai.OpenAI) -> None:
    state = ChatCompletionStreamState()
    chunks = list(sdk.chat.completions.create(model="toy", messages=MESSAGES, n=3, stream=True))
    begun = [(chunk.choices[0].index, chunk.choices[0].delta.role) for chunk in chunks[:3]]
    assert begun == [(number, "assistant") for number in range(3)]
    assert [chunk.choices[0].delta.role for chunk in chunks[3:]] == [None] * len(chunks[3:])
    last_first = sorted(chunks[3:], key=lambda chunk: -chunk.choices[0].index)
    for chunk in [*chunks[:3], *last_first]:
        state.handle_chunk(chunk)
    assert {each.message.content for each in state.get_final_completion().choices} == {"readAll\u2028Lines"}


def test_log_probabilities_have_text_and_bytes_and_none_of_the_end(
    sdk: openai.OpenAI, ensemble: Ensemble, front: Front
) -> None:
    ids = [front.model.checkpoint.tokenizer.encode("é", add_special_tokens=False).ids[0]] * 2
    end = next(iter(front.model.end_ids))
    ensemble.pieces = (
        Piece(
            "",
            output_ids=(ids[0],),
            output_log_probs=(-0.5,),
            top_ids=((ids[0], 7),),
            top_log_probs=((-0.5, -1.0),),
        ),
        Piece(
            "",
            "stop",
            output_ids=(end,),
            output_log_probs=(-0.25,),
            top_ids=((end, 7),),
            top_log_probs=((-0.25, -2.0),),
        ),
    )
    whole = sdk.chat.completions.create(model="toy", messages=MESSAGES, logprobs=True, top_logprobs=2)
    (entry,) = whole.choices[0].logprobs.content
    assert (entry.logprob, bytes(entry.bytes)) == (-0.5, "é".encode()[: len(entry.bytes)])
    assert [top.logprob for top in entry.top_logprobs] == [-0.5, -1.0]
    assert (ensemble.asked[0]["return_log_probs"], ensemble.asked[0]["num_top_log_probs"]) == (True, 2)


def test_asyncio_works_as_well(front: Front) -> None:
    async def ask_all() -> str:
        async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key=KEY, max_retries=0) as sdk:
            stream = await sdk.chat.completions.create(model="toy", messages=MESSAGES, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(ask_all()) == "readAll\u2028Lines"


# --- what the ensemble is asked


def test_fields_arrive_as_the_ensemble_calls_them(sdk: openai.OpenAI, ensemble: Ensemble) -> None:
    sdk.chat.completions.create(
        model="toy",
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "name": "x"},
            {"role": "user", "content": "c"},
        ],
        max_completion_tokens=9,
        temperature=0.5,
        top_p=0.25,
        seed=-2,
        stop="\n",
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"7": -100, "50": 1.5},  # type: ignore[dict-item]
        user="me",
        extra_body={
            **{"top_k": 5, "min_p": 0.125, "min_tokens": 2, "stop_token_ids": [3], "bad_words": ["x"]},
            **{"repetition_penalty": 1.5, "priority": 4, "tools": None, "response_format": {"type": "text"}},
        },
    )
    (asked,) = ensemble.asked
    assert json.loads(asked.pop("messages")) == [
        {"role": "system", "content": "a\nb"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "c"},
    ]
    assert asked == {
        **{
            "stream": True,
            "return_output_ids": True,
            "return_num_input_tokens": True,
        },
        **{"max_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_p": 0.25, "top_k": 5, "min_p": 0.125},
        **{"seed": (1 << 64) - 2, "stop_words": ("\n",), "stop_token_ids": (3,), "bad_words": ("x",)},
        **{"presence_penalty": 1.0, "frequency_penalty": -1.0, "repetition_penalty": 1.5},
        **{"logit_bias_ids": (7, 50), "logit_bias_values": (-100.0, 1.5)},
        "request_priority": -4,
    }


def test_without_fields_the_answer_is_drawn_and_may_fill_the_context(
    sdk: openai.OpenAI, ensemble: Ensemble
) -> None:
    sdk.chat.completions.create(model="toy", messages=MESSAGES)
    assert (ensemble.asked[0]["temperature"], ensemble.asked[0]["max_tokens"]) == (1.0, -1)
    sdk.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=5, extra_body={"ignore_eos": True})
    assert (ensemble.asked[1]["max_tokens"], ensemble.asked[1]["min_tokens"]) == (5, 5)


def test_a_seed_of_minus_one_is_any_and_a_top_k_of_minus_one_is_all(
    front: Front, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in vLLM."""
    for _ in range(2):
        post(front, json.dumps({"messages": MESSAGES, "seed": -1, "top_k": -1}).encode())
    monkeypatch.setitem(front.model.defaults, "top_k", -1)
    post(front, json.dumps({"messages": MESSAGES}).encode())
    assert [asked["top_k"] for asked in ensemble.asked] == [0, 0, 0]
    assert len({asked["seed"] for asked in ensemble.asked}) == 3


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ({}, {"temperature": 1.0}),
        ({"do_sample": False}, {"temperature": 0.0}),
        ({"temperature": 0.6, "top_k": 20, "top_p": "?"}, {"temperature": 0.6, "top_k": 20}),
    ],
)
def test_defaults_are_those_of_generation_config(file: dict[str, Any], expected: dict[str, Any]) -> None:
    assert defaults(file) == expected


def test_defaults_that_the_engine_lacks_are_left_out() -> None:
    limits = ModelLimits(64, 512, 1, 4, 16, unsupported=("min_p", "repetition_penalty"))
    found = {"temperature": 0.5, "min_p": 0.1, "repetition_penalty": 1.05}
    model: Any = SimpleNamespace(defaults=found, limits=limits, adapter=lambda _: "")
    (made,) = parameters_of(ChatAsk(messages=[], min_p=0.2), 9, model)
    assert {name: made.get(name) for name in found} == {
        "temperature": 0.5,
        "min_p": 0.2,
        "repetition_penalty": None,
    }


def test_tools_and_values_go_to_the_template_that_writes_tools(
    sdk: openai.OpenAI, ensemble: Ensemble, front: Front
) -> None:
    """Else they are left out."""
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}},
        {"type": "custom", "custom": {"name": "patch", "description": "a patch"}},
        {"type": "web_search"},
    ]
    fields: Any = {"reasoning_effort": "none", "extra_body": {"chat_template_kwargs": {"depth": 3}}}
    sdk.chat.completions.create(model="toy", messages=MESSAGES, tools=tools, **fields)
    assert "tools" not in ensemble.asked[0]
    front.model.__dict__["template"] = template(TOOLS)
    sdk.chat.completions.create(model="toy", messages=MESSAGES, tools=tools, **fields)
    (named, asked) = (json.loads(ensemble.asked[1][name]) for name in ("chat_template_kwargs", "tools"))
    assert named == {"reasoning_effort": "none", "enable_thinking": False, "depth": 3}
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert asked == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "patch", "description": "a patch", "parameters": text}},
    ]
    sdk.chat.completions.create(model="toy", messages=MESSAGES, tools=tools, tool_choice="none")
    assert "tools" not in ensemble.asked[2]


def test_calls_and_thoughts_go_to_the_template_that_writes_calls(
    sdk: openai.OpenAI, ensemble: Ensemble, front: Front
) -> None:
    front.model.__dict__["template"] = template(TOOLS)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages: Any = [
        *MESSAGES,
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "x.py"}]},
    ]
    sdk.chat.completions.create(model="toy", messages=messages)
    called = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert json.loads(ensemble.asked[0]["messages"])[1:] == [
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [called]},
        {"role": "tool", "content": "x.py", "tool_call_id": "c1", "name": "f"},
    ]


def test_an_answer_may_go_on_with_the_last_message(sdk: openai.OpenAI, ensemble: Ensemble) -> None:
    messages: Any = [*MESSAGES, {"role": "assistant", "content": "def read"}]
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    sdk.chat.completions.create(model="toy", messages=messages, extra_body=extra)
    assert ensemble.asked[0]["continue_final_message"] is True


# --- errors


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"tempreature": 1}, "tempreature", "unknown_field"),
        ({"messages": "hello"}, "messages", "invalid_type"),
        ({"messages": []}, "messages", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
            None,
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]", None),
        ({"tools": {}}, "tools", "invalid_type"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", None),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_value"),
        ({"reasoning_effort": "<|end|>"}, "reasoning_effort", "invalid_value"),
        ({"continue_final_message": True}, "continue_final_message", "invalid_value"),
        ({"add_generation_prompt": False}, "add_generation_prompt", "invalid_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "unsupported_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.schema", "invalid_type"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 129}, "n", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1 << 40}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"seed": 1 << 64}, "seed", None),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"ignore_eos": True}, "ignore_eos", "invalid_value"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"a": 5}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 5}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", "invalid_value"),
    ],
)
def test_a_bad_field_is_named(front: Front, body: dict[str, Any], param: str, code: str | None) -> None:
    status, _, answer = post(front, json.dumps({"messages": MESSAGES, **body}).encode())
    error = answer["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert param in error["message"]
    assert code in (None, error["code"])


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"messages": NaN}', b"[" * 100_000, b'{"a":' * 100_000]
)
def test_a_body_that_is_no_json_object_is_refused(front: Front, body: bytes) -> None:
    status, _, answer = post(front, body)
    assert (status, answer["error"]["code"]) == (400, "invalid_json")


def test_unknown_fields_that_are_like_no_other_are_ignored(front: Front) -> None:
    others = {"reasoning_format": "none", "models": ["a"], "prediction": {"type": "content", "content": "a"}}
    ranges = {"repetition_penalty_range": 64, "frequency_penalty_range": 64}
    given = {"messages": MESSAGES, "x_tenant": 3, **others, **ranges}
    assert post(front, json.dumps(given).encode())[0] == 200


def test_a_refusal_of_the_ensemble_names_the_limit_that_the_client_gave(
    front: Front, ensemble: Ensemble
) -> None:
    ensemble.error = "max_tokens = 90: must be at most 63 [invalid_value]"
    for name in ("max_tokens", "max_completion_tokens"):
        for stream in (False, True):
            body = {"messages": MESSAGES, name: 90, "stream": stream}
            error = post(front, json.dumps(body).encode())[2]["error"]
            assert (error["param"], error["message"]) == (name, f"{name} = 90: must be at most 63")


@pytest.mark.parametrize(
    ("said", "error", "param", "code"),
    [
        (
            "stop_words[0] = 300 bytes: must have 1 to 256 [invalid_value]",
            openai.BadRequestError,
            "stop[0]",
            "invalid_value",
        ),
        (
            "messages[0].role = 'x': must be one of y [invalid_value]",
            openai.BadRequestError,
            "messages[0].role",
            "invalid_value",
        ),
        (
            "messages = 90 tokens: must be at most 63 [context_length_exceeded]",
            openai.BadRequestError,
            "messages",
            "context_length_exceeded",
        ),
        ("too many open requests: 2 are open [queue_full]", openai.RateLimitError, None, "queue_full"),
        ("the server is shutting down [shutting_down]", openai.InternalServerError, None, "shutting_down"),
        ("Stub process 'a' is not healthy.", openai.InternalServerError, None, "unavailable"),
        ("the instance was lost [failed]", openai.InternalServerError, None, "failed"),
    ],
)
def test_errors_of_the_ensemble_have_the_status_that_clients_know(
    sdk: openai.OpenAI,
    ensemble: Ensemble,
    said: str,
    error: type[openai.APIStatusError],
    param: str,
    code: str,
) -> None:
    ensemble.error = said
    for stream in (False, True):
        with pytest.raises(error) as raised:
            sdk.chat.completions.create(model="toy", messages=MESSAGES, stream=stream)
        assert (raised.value.param, raised.value.code) == (param, code)
        assert "[" not in raised.value.body["message"].replace("[0]", "")
        waits = raised.value.status_code in (429, 503)
        assert (raised.value.response.headers.get("retry-after") is not None) == waits


def test_an_error_in_the_middle_of_a_stream_is_raised(sdk: openai.OpenAI, ensemble: Ensemble) -> None:
    ensemble.pieces = ANSWER[:1]  # and no end
    with pytest.raises(openai.APIError, match="before the answer was complete"):
        list(sdk.chat.completions.create(model="toy", messages=MESSAGES, stream=True))


def test_the_model_has_the_names_that_it_is_given(ensemble: Ensemble, model: Path, tmp_path: Path) -> None:
    named = Front(ensemble, model, tmp_path, Keys(()), model_names="gpt-4o, small,")
    try:
        with openai.OpenAI(base_url=f"{named.url}/v1", api_key=KEY, max_retries=0) as sdk:
            assert [each.id for each in sdk.models.list()] == ["gpt-4o", "small"]
            assert sdk.models.retrieve("small").id == "small"
            for asked in ("gpt-4o", "small"):
                answer = sdk.chat.completions.create(model=asked, messages=MESSAGES)
                assert answer.model == asked
            with pytest.raises(openai.NotFoundError):
                sdk.chat.completions.create(model="toy", messages=MESSAGES)
    finally:
        named.close()


def test_unknown_models_and_routes_have_errors_of_the_same_shape(sdk: openai.OpenAI, front: Front) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        sdk.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert raised.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("gpt-9")
    with pytest.raises(openai.NotFoundError) as raised:
        sdk.embeddings.create(model="toy", input="x")
    assert raised.value.code == "not_found"
    assert [each.id for each in sdk.models.list()] == [sdk.models.retrieve("toy").id] == ["toy"]
    assert sdk.models.retrieve("toy").max_model_len == 2048


# --- clients that leave, silence, bounds


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_request(front: Front, ensemble: Ensemble, stream: bool) -> None:
    ensemble.pieces = (*ANSWER[:1], None) if stream else (None,)
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES, "stream": stream}))
    while not ensemble.asked:
        time.sleep(0.01)
    connection.close()
    assert ensemble.cancelled.wait(60)


def test_all_choices_of_a_client_that_leaves_are_cancelled(sdk: openai.OpenAI, ensemble: Ensemble) -> None:
    ensemble.pieces = (*ANSWER[:1], None)
    with sdk.chat.completions.create(model="toy", messages=MESSAGES, n=2, stream=True) as stream:
        next(iter(stream))
    assert ensemble.cancelled.wait(60)


def test_a_silent_stream_shows_that_it_lives(
    front: Front, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "SIGN_EVERY_S", 0.1)
    ensemble.pause_s = 0.35
    events = lines_of(front, messages=MESSAGES)
    assert events[0] == ": still here"


def test_a_body_beyond_the_bound_is_refused_whether_it_says_its_length_or_not(front: Front) -> None:
    large = b" " * (3 << 20)
    assert post(front, large)[0] == 413
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.request("POST", "/v1/chat/completions", iter([large]), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    status, _, answer = post(front, b"x", content_encoding="gzip")
    assert (status, answer["error"]["code"]) == (400, "unsupported_encoding")


def test_request_ids_come_back(front: Front) -> None:
    body = json.dumps({"messages": MESSAGES}).encode()
    assert post(front, body, x_request_id="abc-1")[1]["x-request-id"] == "abc-1"
    made = {post(front, body, x_request_id="a b")[1]["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    assert "a b" not in made


# --- keys


def test_with_keys_everything_but_health_needs_one(ensemble: Ensemble, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    hashed = f"sha256:{hashlib.sha256(b'second').hexdigest()}"
    file.write_text(f"# of the team\n{KEY}\n{hashed}\n")
    front = Front(ensemble, model, tmp_path, read_keys(file, "third"))
    try:
        for key in (KEY, "second", "third"):
            with openai.OpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0) as sdk:
                assert len(list(sdk.models.list())) == 1
        for key in ("wrong", hashed):
            with (
                openai.OpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0) as sdk,
                pytest.raises(openai.AuthenticationError),
            ):
                sdk.chat.completions.create(model="toy", messages=MESSAGES)
        for path, status in (("/health", 503), ("/v1/models", 401), ("/other", 401)):
            assert sent(front, path)[0] == status
    finally:
        front.close()


@pytest.mark.parametrize("content", ["", "# none", "sha256:12", "sha256:xyz"])
def test_a_file_of_keys_without_one_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(SettingsError, match=r"front\.api_keys"):
        read_keys(file, "")


def test_blanks_around_the_key_of_the_environment_are_left_out() -> None:
    assert read_keys(None, " sk-mine\n").allow("Bearer sk-mine")
    with pytest.raises(SettingsError, match="GAPLESS_API_KEY: must not be blank"):
        read_keys(None, "\n")


def test_without_keys_everybody_may_ask() -> None:
    assert Keys(()).allow("")
    assert not read_keys(None, "a").allow("Bearer ")
