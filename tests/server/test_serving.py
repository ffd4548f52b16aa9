"""What a client sees of a real Triton server: answers, errors, stops, limits, closed doors."""

from __future__ import annotations

import json
import queue
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton

from python_backends.text.door.table import NEUTRAL, TENSORRT_LLM_INPUTS
from tests.support.server.expected import FORTY, PROMPT, Expected
from tests.support.server.serving import Gapless, wait_for
from tests.support.toy_engine import toy_settings


def some_word(text: str) -> str:
    """Three characters out of the middle of a text, of those that were not cut out of a character."""
    return next(text[i : i + 3] for i in range(len(text) // 3, len(text)) if "\ufffd" not in text[i : i + 3])


def test_generate_answers_in_one_piece(gapless: Gapless, expected: Expected) -> None:
    answer = gapless.generate(
        text_input=PROMPT, **FORTY, return_num_output_tokens=True, return_num_input_tokens=True
    )
    assert answer["text_output"] == expected.text(PROMPT, **FORTY)
    assert answer["finish_reason"] == "length"
    assert answer["num_output_tokens"] == 40
    assert answer["num_input_tokens"] == len(expected.ids(PROMPT))


def test_generate_stream_sends_the_same_text_in_pieces(gapless: Gapless, expected: Expected) -> None:
    long = {"max_tokens": 300, "min_tokens": 300}
    answer = gapless.generate_stream(text_input=PROMPT, **long)
    assert answer.text == expected.text(PROMPT, **long)
    assert answer.chunks > 5
    assert answer.reasons == ["length"]


def test_grpc_streams_the_same_text(gapless: Gapless, expected: Expected) -> None:
    client = gapless.grpc()
    answers = {
        f"{n}": client.ask(f"{n}", text_input=f"{PROMPT} # {n}", max_tokens=30 + n, min_tokens=30 + n)
        for n in range(20)
    }
    client.finish()
    client.close()
    for n in range(20):
        assert answers[f"{n}"].text == expected.text(f"{PROMPT} # {n}", max_tokens=30 + n, min_tokens=30 + n)
        assert answers[f"{n}"].reasons == ["length"]


def test_a_chat_is_rendered_with_the_models_own_template(gapless: Gapless, expected: Expected) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answer = gapless.generate(messages=json.dumps(messages), max_tokens=20)
    assert answer["text_output"] == expected.text("<|user|>hello<|end|><|assistant|>", max_tokens=20)


def test_a_prompt_may_be_rendered_by_the_client_or_come_as_ids(gapless: Gapless, expected: Expected) -> None:
    chat = json.dumps([{"role": "user", "content": "hello"}])
    rendered = "<|user|>hello<|end|><|assistant|>"
    ids = expected.ids(rendered)
    wanted = gapless.generate(messages=chat, max_tokens=20)["text_output"]
    for prompt in ({"text_input": rendered, "text_input_is_rendered": True}, {"input_ids": ids}):
        assert gapless.generate(**prompt, max_tokens=20)["text_output"] == wanted
        assert gapless.generate_stream(**prompt, max_tokens=20).text == wanted


def test_input_text_goes_before_the_answer_when_asked_for(gapless: Gapless, expected: Expected) -> None:
    whole = PROMPT + expected.text(PROMPT, max_tokens=10)
    assert (
        gapless.generate(text_input=PROMPT, max_tokens=10, exclude_input_in_output=False)["text_output"]
        == whole
    )
    assert (
        gapless.generate_stream(text_input=PROMPT, max_tokens=10, exclude_input_in_output=False).text == whole
    )


def test_the_same_seed_gives_the_same_text_and_another_another(gapless: Gapless) -> None:
    def text(seed: int) -> str:
        return str(
            gapless.generate(text_input=PROMPT, max_tokens=20, temperature=0.8, seed=seed)["text_output"]
        )

    assert text(7) == text(7) != text(8)


def test_a_stop_word_ends_the_answer_and_is_never_sent(gapless: Gapless, expected: Expected) -> None:
    text = expected.text(PROMPT, max_tokens=60, min_tokens=1)
    stop_word = some_word(text)
    for answer in (
        gapless.generate(text_input=PROMPT, max_tokens=60, min_tokens=1, stop_words=[stop_word])[
            "text_output"
        ],
        gapless.generate_stream(
            text_input=PROMPT, max_tokens=60, min_tokens=1, stop_words=[stop_word, "never there"]
        ).text,
    ):
        assert answer == text.split(stop_word)[0]


def test_a_deadline_ends_an_answer_with_what_there_is(gapless: Gapless, expected: Expected) -> None:
    answer = gapless.generate_stream(text_input=PROMPT, max_tokens=1500, min_tokens=1500, timeout=1_500_000)
    assert answer.reasons == ["deadline"]
    assert answer.text
    assert expected.text(PROMPT, max_tokens=1500, min_tokens=1500).startswith(answer.text[:-3])
    client = gapless.grpc()
    asked = client.ask(text_input=PROMPT, max_tokens=1500, min_tokens=1500, timeout_us=1_500_000)
    client.finish()
    client.close()
    assert asked.reasons == ["deadline"]


def test_inputs_that_ask_for_nothing_are_taken_at_both_doors(gapless: Gapless, expected: Expected) -> None:
    nothing = {
        name: [field.only] if field.is_list else field.only
        for name, field in TENSORRT_LLM_INPUTS.items()
        if name in NEUTRAL
    }
    wanted = expected.text(PROMPT, max_tokens=5)
    asked = {
        "text_input": PROMPT,
        "max_tokens": 5,
        "stop_words": ["never there", ""],
        "length_penalty": 2.0,
        "early_stopping": True,
        **nothing,
    }
    assert gapless.generate(**asked)["text_output"] == wanted
    client = gapless.grpc()
    answer = client.ask("1", **asked)
    client.finish()
    client.close()
    assert answer.text == wanted


def test_bad_input_is_refused_at_the_door_by_name_and_limit(gapless: Gapless) -> None:
    """No engine hears of it. Each refusal of the door is in tests/pure/text/test_door.py."""
    before = gapless.metrics()
    for inputs, says in [
        ({"text_input": "x", "top_p": 1.5}, "top_p = 1.5: must be a finite number between 0 and 1"),
        ({"text_input": "x", "max_tokens": 2**31}, "arrives cut to 32 bits"),
        ({"text_input": "x", "lora_name": "law"}, "lora_name = 'law': "),
        ({"messages": "not json"}, "messages = "),
    ]:
        answer = gapless.generate(**inputs)
        assert (answer["status"], says in answer["error"]) == (400, True), answer
    after = gapless.metrics()
    assert after["gapless_prompt_tokens_total"] == before["gapless_prompt_tokens_total"]


def test_doors_that_only_the_launcher_needs_are_closed(gapless: Gapless) -> None:
    for path in (
        "/v2/repository/index",
        "/v2/repository/models/tokenizer/unload",
        "/v2/systemsharedmemory/region/x/register",
        "/v2/cudasharedmemory/region/x/register",
        "/v2/trace/setting",
        "/v2/logging",
    ):
        status, text = gapless.post(path, {})
        assert (status, "restricted" in text) == (403, True), path


def test_grpc_closes_them_too(gapless: Gapless) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{gapless.grpc_port}") as client:
        for knock in (
            client.get_model_repository_index,
            lambda: client.unload_model("tokenizer"),
            lambda: client.register_system_shared_memory("x", "/x", 64),
            client.get_inference_statistics,
            client.get_log_settings,
            client.get_trace_settings,
        ):
            with pytest.raises(triton.InferenceServerException, match="restricted"):
                knock()


INNER = {
    "tokenizer": ("text_input", "BYTES"),
    "scheduler": ("request", "UINT8"),
    "detokenizer": ("token_window", "UINT8"),
}


@pytest.mark.parametrize("model", INNER)
def test_clients_cannot_call_the_models_inside_the_ensemble(gapless: Gapless, model: str) -> None:
    name, datatype = INNER[model]
    value: Any = ["hello"] if datatype == "BYTES" else [1] * 40
    tensor = {"name": name, "datatype": datatype, "shape": [1, len(value)], "data": value}
    generate = {name: value[0] if datatype == "BYTES" else value}
    for verb, body in (
        ("infer", {"inputs": [tensor]}),
        ("generate", generate),
        ("generate_stream", generate),
    ):
        for version in ("", "/versions/1"):
            status, text = gapless.post(f"/v2/models/{model}{version}/{verb}", body)
            assert (status, "2 identifiers" in text) == (400, True), (version, verb, text)


@pytest.mark.parametrize("model", INNER)
def test_grpc_clients_cannot_call_them_either(gapless: Gapless, model: str) -> None:
    name, datatype = INNER[model]
    values = np.array([[b"hello"]], object) if datatype == "BYTES" else np.ones((1, 40), np.uint8)
    given = triton.InferInput(name, values.shape, datatype)
    given.set_data_from_numpy(values)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with triton.InferenceServerClient(f"127.0.0.1:{gapless.grpc_port}") as client:
        with pytest.raises(triton.InferenceServerException, match="2 identifiers"):
            client.infer(model, [given])
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(model, [given])
        result, error = answers.get(timeout=60)
        assert result is None
        assert "2 identifiers" in error.message()
        client.stop_stream()


def test_while_statistics_are_open_no_changed_or_repeated_message_is_taken(toy_model: Path) -> None:
    """perf_analyzer asks for the inner models by name, so they can be called then."""
    with Gapless(**{**toy_settings(toy_model), "server.statistics": True}) as served:
        inputs = [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["hello"]}]
        status, text = served.post("/v2/models/tokenizer/infer", {"inputs": inputs})
        assert status == 200
        [output] = json.loads(text)["outputs"]
        message = output["data"]
        changed = [*message[:-1], message[-1] ^ 1]
        assert "token_window" in served.post("/v2/models/scheduler/generate_stream", {"request": message})[1]
        for model, name, data in [
            ("scheduler", "request", changed),
            ("scheduler", "request", message),
            ("detokenizer", "token_window", message),
        ]:
            assert "not for clients" in served.post(f"/v2/models/{model}/generate_stream", {name: data})[1]
        assert served.generate(text_input="hello", max_tokens=5)["status"] == 200


def test_the_server_listens_on_loopback_only(gapless: Gapless) -> None:
    listening = [
        connection.laddr.ip
        for process in gapless.processes()
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_metrics_are_there_and_count(gapless: Gapless) -> None:
    wait_for(gapless.is_idle, 60)
    before = gapless.metrics()
    gapless.generate(text_input=PROMPT, max_tokens=30, min_tokens=30)
    assert gapless.post("/v2/models/ensemble/generate", {"text_input": PROMPT, "max_tokens": -2})[0] == 400
    after = gapless.metrics()
    invalid = 'gapless_refused_at_door_total{reason="invalid"}'
    assert after[invalid] == before[invalid] + 1
    assert after["gapless_generated_tokens_total"] == before["gapless_generated_tokens_total"] + 30
    assert after["gapless_slots_total"] == 16
    for name in (
        "gapless_requests_waiting",
        "gapless_slots_busy",
        "gapless_kv_blocks_used",
        "gapless_prompt_tokens_total",
        "gapless_prefix_hit_tokens_total",
        'gapless_requests_total{outcome="length"}',
        "gapless_time_to_first_token_seconds_count",
        "gapless_time_per_output_token_seconds_sum",
        'gapless_e2e_latency_seconds_bucket{le="+Inf"}',
        "gapless_queue_time_seconds_count",
        'gapless_late_tokens_total{cause="prompts"}',
        "gapless_evictions_total",
    ):
        assert name in after
    assert after["gapless_kv_blocks_total"] > 0
