"""What comes through the door, and what each refusal says: field, value, limit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.nouns.request import AdapterVersion, ModelLimits, RefusedError, Request
from python_backends.settings import LimitSettings
from python_backends.text.checkpoint import CheckpointError
from python_backends.text.door.door import open_door
from python_backends.text.door.table import KNOWN, SUPPORTED
from tests.support.examples import examples
from tests.support.text.checkpoints import byte_level, sentence_piece

LIMITS = LimitSettings(
    default_max_tokens=100,
    max_prompt_bytes=2000,
    max_stop_words=3,
    max_stop_word_bytes=8,
    max_bad_words=4,
    max_top_log_probs=5,
)
DOOR = open_door(byte_level(), LIMITS)  # 128 tokens of context, 448 ids
TEXT = "hello world"
NUM_TEXT = len(byte_level().tokenizer.encode(TEXT).ids)


def admit(**fields: Any) -> Request | RefusedError:
    if "messages" not in fields:
        fields = {"text_input": TEXT, **fields}
    return DOOR.answer(fields)


def taken(**fields: Any) -> Request:
    answer = admit(**fields)
    assert isinstance(answer, Request), answer
    return answer


def refused(**fields: Any) -> str:
    answer = admit(**fields)
    assert isinstance(answer, RefusedError), answer
    return str(answer)


def tensor(value: Any, dtype: Any) -> np.ndarray[Any, Any]:
    return np.array([[value]], dtype)


def test_a_bare_text_is_a_greedy_request() -> None:
    request = taken()
    assert request.prompt.tolist() == byte_level().tokenizer.encode(TEXT).ids
    assert request.prompt.dtype == np.int32
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.top_p) == (0.0, 0, 1.0)
    assert (request.sampling.max_tokens, request.sampling.min_tokens) == (100, 0)
    assert request.sampling.stop_ids == (0,)
    assert (request.stream, request.echo, request.stop_words, request.deadline_ns) == (False, "", (), 0)


def test_fields_come_as_tensors() -> None:
    request = taken(
        text_input=tensor(TEXT.encode(), object),
        max_tokens=tensor(7, np.int32),
        min_tokens=tensor(2, np.int32),
        temperature=tensor(0.5, np.float32),
        top_k=tensor(3, np.int32),
        top_p=tensor(0.25, np.float32),
        seed=tensor((1 << 64) - 1, np.uint64),
        stop_words=np.array([[b"a", "é".encode()]], object),
        stream=tensor(True, np.bool_),
        exclude_input_in_output=tensor(False, np.bool_),
        return_num_input_tokens=tensor(True, np.bool_),
        return_num_output_tokens=tensor(True, np.bool_),
        end_id=tensor(9, np.int32),
        pad_id=tensor(-5, np.int32),
        beam_width=tensor(1, np.int32),
        bad_words=np.array([[b""]], object),
    )
    sampling = request.sampling
    assert (
        sampling.max_tokens,
        sampling.min_tokens,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
    ) == (7, 2, 0.5, 3, 0.25)
    assert (sampling.seed, sampling.stop_ids) == ((1 << 64) - 1, (0, 9))
    assert (request.stop_words, request.stream, request.echo) == (("a", "é"), True, TEXT)
    assert request.wants_num_input_tokens
    assert request.wants_num_output_tokens


def test_everything_about_sampling_comes_as_tensors() -> None:
    sampling = taken(
        min_p=tensor(0.25, np.float32),
        repetition_penalty=tensor(1.5, np.float32),
        presence_penalty=tensor(-2.0, np.float32),
        frequency_penalty=tensor(2.0, np.float32),
        stop_token_ids=np.array([[7, 300]], np.int32),
        bad_words=np.array([[b"hello"]], object),
        return_log_probs=tensor(True, np.bool_),
        num_top_log_probs=tensor(5, np.int32),
    ).sampling
    assert (sampling.min_p, sampling.repetition_penalty) == (0.25, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-2.0, 2.0)
    assert sampling.stop_ids == (0, 7, 300)
    assert sampling.bad_words
    assert (sampling.log_probs, sampling.num_top_log_probs) == (True, 5)


def test_a_bare_request_pays_for_nothing() -> None:
    sampling = taken().sampling
    assert not sampling.penalizes
    assert not sampling.looks_back
    assert not sampling.log_probs
    neutral = {
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "min_p": 0.0,
        "bad_words": [],
    }
    assert not taken(**neutral).sampling.looks_back


@pytest.mark.parametrize(
    ("word", "spellings"), [("hello", ["hello", " hello"]), (" hello", [" hello"]), ("\n", ["\n"])]
)
def test_a_bad_word_is_banned_as_it_stands_and_behind_a_space(word: str, spellings: list[str]) -> None:
    tokenizer = byte_level().tokenizer
    words = taken(bad_words=[word]).sampling.bad_words
    assert words == tuple(tuple(tokenizer.encode(spelling).ids) for spelling in spellings)


def test_a_special_token_as_a_bad_word_is_its_text() -> None:
    assert all(0 not in word for word in taken(bad_words=["<|"]).sampling.bad_words)
    assert all(0 not in word for word in taken(bad_words=["<|end|>"]).sampling.bad_words)


def test_ids_and_seeds_are_drawn() -> None:
    requests = [taken() for _ in range(50)]
    assert len({request.request_id for request in requests}) == 50
    assert len({request.sampling.seed for request in requests}) == 50
    assert all(
        0 < request.request_id < 1 << 63 and 0 <= request.sampling.seed < 1 << 63 for request in requests
    )


def test_messages_are_rendered_and_echoed_as_people_read_them() -> None:
    request = taken(
        messages=json.dumps([{"role": "user", "content": "<|end|>"}]), exclude_input_in_output=False
    )
    assert request.echo == "<|user|><|end|><|end|><|assistant|>"
    assert request.prompt.tolist().count(0) == 1


def test_special_tokens_in_a_text_are_text() -> None:
    assert 0 not in taken(text_input="<|end|>").prompt


def test_a_plain_prompt_gets_the_tokens_that_open_it_and_a_chat_has_its_own() -> None:
    door = open_door(sentence_piece(), LIMITS)
    plain = door.answer({"text_input": "hello"})
    chat = door.answer({"messages": '[{"role": "user", "content": "hello"}]'})
    assert isinstance(plain, Request)
    assert isinstance(chat, Request)
    assert plain.prompt.tolist() == sentence_piece().tokenizer.encode("hello").ids
    assert [request.prompt.tolist().count(1) for request in (plain, chat)] == [1, 1]


def test_a_deadline_counts_from_arrival() -> None:
    request = taken(timeout=5)
    assert request.deadline_ns == request.arrival_ns + 5000
    assert taken(timeout=0).deadline_ns == 0


def test_a_priority_travels_with_the_request() -> None:
    assert taken().priority == 0
    assert taken(request_priority=tensor(-3, np.int32)).priority == -3


def test_one_bad_request_harms_no_other() -> None:
    answers = [DOOR.answer({"text_input": text}) for text in ("a", "", 5, "b")]
    assert [isinstance(answer, Request) for answer in answers] == [True, False, False, True]


def test_what_is_left_of_the_context_bounds_the_answer() -> None:
    assert taken(text_input="0" * 100).sampling.max_tokens == 28
    assert taken(text_input="0" * 127).sampling.max_tokens == 1
    assert refused(text_input="0" * 128).startswith("text_input = 128 tokens: must be at most 127")
    assert taken(max_tokens=128 - NUM_TEXT).sampling.max_tokens == 128 - NUM_TEXT
    message = refused(max_tokens=129 - NUM_TEXT)
    assert message.startswith(
        f"max_tokens = {129 - NUM_TEXT}: must be at most {128 - NUM_TEXT}, because text_input has {NUM_TEXT}"
        " tokens"
    )


def test_prompts_are_bounded_by_a_setting_below_the_context() -> None:
    door = open_door(byte_level(), replace(LIMITS, max_prompt_tokens=10))
    taken, refused = (door.answer({"text_input": "0" * length}) for length in (10, 11))
    assert isinstance(taken, Request)
    assert str(refused) == "text_input = 11 tokens: must be at most 10 (limits.max_prompt_tokens)"


def test_min_tokens_must_fit_in_max_tokens() -> None:
    assert (
        refused(min_tokens=5, max_tokens=4) == "min_tokens = 5: must be at most max_tokens, which is 4 here"
    )
    assert taken(min_tokens=4, max_tokens=4).sampling.min_tokens == 4


REFUSALS: list[tuple[str, Any, str]] = [
    ("temperature", float("nan"), "temperature = nan: must be a finite number between 0 and 100"),
    ("temperature", np.float32("inf"), "temperature = inf: must be a finite number between 0 and 100"),
    ("temperature", -0.5, "temperature = -0.5: must be a finite number between 0 and 100"),
    ("temperature", "hot", "temperature = 'hot': must be a finite number between 0 and 100"),
    ("temperature", True, "temperature = True: must be a finite number between 0 and 100"),
    ("temperature", [0.5], "temperature = [0.5]: must be a finite number between 0 and 100"),
    (
        "temperature",
        np.zeros([2, 1], np.float32),
        "temperature has the shape [2, 1]: exactly one value is allowed",
    ),
    ("temperature", np.zeros([0], np.float32), "temperature has the shape [0]: exactly one value is allowed"),
    ("top_p", 0.0, "top_p = 0.0: must be above 0 and at most 1"),
    ("top_p", 1.5, "top_p = 1.5: must be a finite number between 0 and 1"),
    ("top_k", -1, "top_k = -1: must be a whole number between 0 and 448"),
    ("top_k", 449, "top_k = 449: must be a whole number between 0 and 448"),
    ("top_k", 1.0, "top_k = 1.0: must be a whole number between 0 and 448"),
    ("max_tokens", 0, "max_tokens = 0: must be a whole number between 1 and 2147483647"),
    ("max_tokens", True, "max_tokens = True: must be a whole number between 1 and 2147483647"),
    (
        "max_tokens",
        10**30,
        "max_tokens = 1000000000000000000000000000000: must be a whole number between 1 and 2147483647",
    ),
    (
        "max_tokens",
        10**9999,
        "max_tokens = an integer of 33216 bits: must be a whole number between 1 and 2147483647",
    ),
    ("min_tokens", -1, "min_tokens = -1: must be a whole number between 0 and 2147483647"),
    ("seed", -1, "seed = -1: must be a whole number between 0 and 18446744073709551615"),
    ("timeout", -1, "timeout = -1: must be a whole number between 0 and 1000000000000000"),
    ("end_id", 448, "end_id = 448: must be a whole number between -1 and 447"),
    ("stream", 1, "stream = 1: must be true or false"),
    ("stream", "yes", "stream = 'yes': must be true or false"),
    ("stop_words", ["a", ""], "stop_words[1] = 0 bytes: must have 1 to 8"),
    ("stop_words", ["ééééé"], "stop_words[0] = 10 bytes: must have 1 to 8"),
    ("stop_words", ["a", "b", "c", "d"], "stop_words = 4 words: must be at most 3"),
    ("stop_words", [5], "stop_words = 5: must be strings"),
    ("stop_words", [b"\xff"], "stop_words = b'\\xff': must be UTF-8, byte 0 is not"),
    ("stop_words", np.array([["a"], ["b"]], object), "stop_words has the shape [2, 1]: one row is allowed"),
    ("text_input", 5, "text_input = 5: must be a string"),
    ("text_input", "", "text_input = 0 tokens: must have at least 1"),
    ("text_input", b"a\xff", "text_input = b'a\\xff': must be UTF-8, byte 1 is not"),
    ("text_input", "a\ud800", "text_input = 'a\\ud800': must be Unicode, character 1 is half of a pair"),
    ("text_input", "a" * 2001, "text_input = 2001 bytes: must be at most 2000 (limits.max_prompt_bytes)"),
    (
        "text_input",
        np.array([["a"], ["b"]], object),
        "text_input has the shape [2, 1]: exactly one value is allowed",
    ),
    ("beam_width", 2, "beam_width = 2: not supported yet, must be 1 or absent"),
    ("bad_words", ["a", ""], "bad_words[1] = 0 bytes: must have 1 to 8"),
    ("bad_words", ["aaaabbbbb"], "bad_words[0] = 9 bytes: must have 1 to 8"),
    ("bad_words", ["a", "hello", "qxzjk"], "bad_words[2] = 5 tokens: must have 1 to 4, also after a space"),
    ("bad_words", ["a", "b", "c", "d", "e"], "bad_words = 5 words: must be at most 4"),
    ("bad_words", 5, "bad_words = 5: must be strings"),
    ("bad_words", [b"\xff"], "bad_words = b'\\xff': must be UTF-8, byte 0 is not"),
    ("bad_words", np.array([["a"], ["b"]], object), "bad_words has the shape [2, 1]: one row is allowed"),
    *[
        (name, value, f"{name} = {shown}: must be a finite number between {limits}")
        for name, limits, least, most in (
            ("min_p", "0 and 1", -0.01, 1.01),
            ("repetition_penalty", "0.0625 and 16", 0.0, 16.5),
            ("presence_penalty", "-2 and 2", -2.5, 2.5),
            ("frequency_penalty", "-2 and 2", -2.5, 2.5),
        )
        for value, shown in (
            (least, f"{least}"),
            (most, f"{most}"),
            (float("nan"), "nan"),
            (float("inf"), "inf"),
            (-float("inf"), "-inf"),
            (1e300, "1e+300"),
            ("1", "'1'"),
            (True, "True"),
            ([1.0], "[1.0]"),
        )
    ],
    ("min_p", np.zeros([2, 1], np.float32), "min_p has the shape [2, 1]: exactly one value is allowed"),
    (
        "repetition_penalty",
        np.zeros([0], np.float32),
        "repetition_penalty has the shape [0]: exactly one value is allowed",
    ),
    ("stop_token_ids", [5, 448], "stop_token_ids[1] = 448: must be a whole number between 0 and 447"),
    ("stop_token_ids", [-1], "stop_token_ids[0] = -1: must be a whole number between 0 and 447"),
    ("stop_token_ids", [1.0], "stop_token_ids[0] = 1.0: must be a whole number between 0 and 447"),
    ("stop_token_ids", [True], "stop_token_ids[0] = True: must be a whole number between 0 and 447"),
    ("stop_token_ids", "5", "stop_token_ids[0] = '5': must be a whole number between 0 and 447"),
    ("stop_token_ids", [1, 2, 3, 4], "stop_token_ids = 4 ids: must be at most 3"),
    ("stop_token_ids", np.zeros([2, 2], np.int32), "stop_token_ids has the shape [2, 2]: one row is allowed"),
    ("return_log_probs", 1, "return_log_probs = 1: must be true or false"),
    ("num_top_log_probs", 6, "num_top_log_probs = 6: must be a whole number between 0 and 5"),
    ("num_top_log_probs", -1, "num_top_log_probs = -1: must be a whole number between 0 and 5"),
    (
        "num_top_log_probs",
        2,
        "num_top_log_probs = 2: needs return_log_probs = true, must be 0 or absent without",
    ),
    (
        "request_priority",
        1.5,
        "request_priority = 1.5: must be a whole number between -2147483647 and 2147483647",
    ),
    (
        "request_priority",
        True,
        "request_priority = True: must be a whole number between -2147483647 and 2147483647",
    ),
    (
        "request_priority",
        -(1 << 31),
        "request_priority = -2147483648: must be a whole number between -2147483647 and 2147483647",
    ),
    ("lora_name", "mine", "lora_name = 'mine': must be absent: this server has no adapters"),
    ("lora_name", 7, "lora_name = 7: must be a string"),
    ("lora_task_id", 0, "lora_task_id = 0: must be absent: this server has no adapters"),
    ("lora_task_id", -1, "lora_task_id = -1: must be a whole number between 0 and 18446744073709551615"),
    ("tempreature", 1.0, "'tempreature': there is no such field; did you mean temperature?"),
    ("zzz", 1.0, "'zzz': there is no such field"),
    *[
        ("timeout", value, f"timeout = {value!r}: must be a whole number between 0 and 1000000000000000")
        for value in (False, True, "", "5", 0.0, 1.5, -5, 10**15 + 1)
    ],
    (
        "messages",
        "{",
        (
            "messages = '{': must be JSON (Expecting property name enclosed in double quotes: line 1 column 2"
            " (char 1))"
        ),
    ),
    ("messages", "[]", "messages = '[]': must be a JSON list of at least one message"),
    ("messages", '"a"', "messages = '\"a\"': must be a JSON list of at least one message"),
    (
        "messages",
        '[{"role": "user"}]',
        "messages[0] = {'role': 'user'}: must be an object with role and content, and nothing else",
    ),
    (
        "messages",
        '[{"role": "end", "content": "a"}]',
        "messages[0].role = 'end': must be one of system, developer, user, assistant, tool",
    ),
    ("messages", '[{"role": "user", "content": null}]', "messages[0].content = None: must be a string"),
    (
        "messages",
        '[{"role": "user", "content": "\\ud800"}]',
        "messages[0].content = '\\ud800': must be Unicode, character 0 is half of a pair",
    ),
]


@pytest.mark.parametrize(
    ("name", "value", "message"), REFUSALS, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(REFUSALS)]
)
def test_a_refusal_names_the_field_the_value_and_the_limit(name: str, value: Any, message: str) -> None:
    assert refused(**{name: value}) == message


def test_a_prompt_is_a_text_or_messages() -> None:
    neither = DOOR.answer({})
    assert str(neither) == "text_input, messages: exactly one of them must be given, neither was"
    assert (
        refused(text_input="a", messages="[]")
        == "text_input, messages: exactly one of them must be given, both were"
    )


def test_every_field_is_explained_in_the_docs() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "parameters.md").read_text()
    assert [name for name in KNOWN if f"`{name}`" not in text] == []


def test_json_nested_beyond_reason_is_refused() -> None:
    assert refused(messages="[" * 1900).startswith("messages = '[[[[")


def test_existing_clients_say_no_words_with_one_empty_string() -> None:
    assert taken(stop_words="", bad_words="").stop_words == ()
    assert taken(stop_words=[], bad_words=[b""]).stop_words == ()
    assert taken(bad_words="").sampling.bad_words == ()


def test_a_model_without_a_template_takes_texts_only() -> None:
    door = open_door(replace(byte_level(), chat_template=None), LIMITS)
    answer = door.answer({"messages": '[{"role": "user", "content": "a"}]'})
    assert str(answer) == "messages: this model has no chat template; send text_input"


def test_a_context_must_be_known() -> None:
    with pytest.raises(CheckpointError, match="max_model_tokens"):
        open_door(replace(byte_level(), max_model_tokens=0), LIMITS)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.integers(), max_size=2),
)


@examples
@given(fields=st.dictionaries(st.sampled_from(SUPPORTED), values, max_size=4))
def test_nothing_gets_past_the_door_but_requests_and_refusals(fields: dict[str, Any]) -> None:
    answer = DOOR.answer(fields)
    assert isinstance(answer, Request | RefusedError)
    if isinstance(answer, RefusedError):
        assert any(str(answer).startswith(name) for name in [*fields, "text_input"])


ENGINE = ModelLimits(
    128,
    448,
    4,
    16,
    16,
    max_bad_word_tokens=1,
    unsupported=("seed", "min_p", "return_log_probs"),
    adapters=(
        AdapterVersion("law", "1", "01"),
        AdapterVersion("poems", "7", "02"),
        AdapterVersion("law", "2", "03"),
        AdapterVersion("7", "1", "04"),
    ),
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seed": 0}, "seed = 0: the engine of this server can't follow it; leave it out"),
        ({"min_p": 0.5}, "min_p = 0.5: the engine of this server can't follow it; leave it out"),
        (
            {"return_log_probs": True},
            "return_log_probs = True: the engine of this server can't follow it; leave it out",
        ),
        ({"lora_name": "jokes"}, "lora_name = 'jokes': must be one of law, poems, 7, or absent"),
        ({"lora_name": "law@3"}, "lora_name = 'law@3': must be one of law, poems, 7, or absent"),
        ({"lora_task_id": 8}, "lora_task_id = 8: must be one of law, poems, 7, or absent"),
        (
            {"lora_task_id": 7, "lora_name": "law"},
            "lora_name = 'law', lora_task_id = 7: at most one of them may be given",
        ),
        ({"bad_words": ["ab"]}, "bad_words[0] = 2 tokens: must have 1 to 1, also after a space"),
    ],
)
def test_what_this_servers_engine_can_not_do_is_refused(fields: dict[str, Any], message: str) -> None:
    answer = open_door(byte_level(), LIMITS, engine=ENGINE).answer({"text_input": "hello", **fields})
    assert str(answer) == message


def test_an_engine_that_lacks_something_takes_requests_that_ask_for_nothing_of_it() -> None:
    fields = {"text_input": "hello", "min_p": 0.0, "return_log_probs": False, "lora_name": "law"}
    answer = open_door(byte_level(), LIMITS, engine=ENGINE).answer(fields)
    assert isinstance(answer, Request)
    assert answer.adapter == AdapterVersion("law", "2", "03")


@pytest.mark.parametrize(
    ("fields", "full_name"),
    [
        ({}, ""),
        ({"lora_name": ""}, ""),
        ({"lora_name": "law"}, "law@2"),
        ({"lora_name": "law@1"}, "law@1"),
        ({"lora_task_id": 7}, "7@1"),
    ],
)
def test_an_adapter_without_a_version_is_the_newest_of_its_name(
    fields: dict[str, Any], full_name: str
) -> None:
    answer = open_door(byte_level(), LIMITS, engine=ENGINE).answer({"text_input": "hello", **fields})
    assert isinstance(answer, Request)
    assert answer.adapter.full_name == full_name
