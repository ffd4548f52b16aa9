"""OpenAI's own client against a whole server: what the front answers is what the ensemble answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from client import Client, user
from tests.support.server.serving import ROOT, Gapless, wait_for

QUESTION = "Convert to camelCase: def read_all_lines(file_name): pass"
MESSAGES = [{"role": "user", "content": QUESTION}]
LONG = {"max_tokens": 1900, "min_tokens": 1900}  # ten seconds and more on the toy engine


@contextlib.contextmanager
def sdk_of(served: Gapless) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{served.front_port}/v1", api_key="none", max_retries=0, timeout=60
    ) as sdk:
        yield sdk


def ask(served: Gapless, **body: Any) -> Any:
    text = served.post_to_front("/v1/chat/completions", {"messages": MESSAGES, **body})[1]
    if not body.get("stream"):
        return json.loads(text)
    return [
        json.loads(each.removeprefix("data: ")) for each in text.split("\n\n") if each.startswith("data: {")
    ]


def joined(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.parametrize("page", ["README.md", "docs/openai.md"])
def test_the_five_lines_of_the_docs_work(bundled: Gapless, page: str) -> None:
    (code,) = re.findall(r"```python\n(from openai.*?)```", (ROOT / page).read_text(), re.DOTALL)
    code = code.replace(":9000/", f":{bundled.front_port}/").replace("SmolLM2-135M-Instruct", "bundled")
    code = code.replace("What is the capital of France?", QUESTION)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "def readAllLines(fileName): pass"


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 7, "top_p": 0.9},
        {"temperature": 0.0, "max_tokens": 3},
    ],
)
def test_a_stream_the_whole_answer_and_the_ensembles_are_the_same(
    bundled: Gapless, sampling: dict[str, Any]
) -> None:
    with Client(f"127.0.0.1:{bundled.grpc_port}") as client:
        expected = client.generate(
            [user(QUESTION)],
            return_num_input_tokens=True,
            return_num_output_tokens=True,
            **{"max_tokens": 400, **sampling},
        )
    with sdk_of(bundled) as sdk:
        whole = sdk.chat.completions.create(model="bundled", messages=MESSAGES, **sampling)
        *chunks, last = sdk.chat.completions.create(
            model="bundled",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            **sampling,
        )
    assert joined(chunks) == whole.choices[0].message.content == expected.text != ""
    assert whole.choices[0].finish_reason == expected.finish_reason == chunks[-1].choices[0].finish_reason
    told = (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert told == (expected.num_input_tokens, expected.num_output_tokens)
    assert last.usage == whole.usage


def test_by_default_the_bundled_model_answers_as_its_generation_config_says(bundled: Gapless) -> None:
    """Greedily."""
    with sdk_of(bundled) as sdk:
        answers = {
            sdk.chat.completions.create(model="bundled", messages=MESSAGES).choices[0].message.content
            for _ in range(2)
        }
    assert len(answers) == 1


def test_everything_fits_openais_types_strictly_and_tokens_join_to_the_text(bundled: Gapless) -> None:
    scored = {"logprobs": True, "top_logprobs": 3, "temperature": 0}
    answer = ask(bundled, **scored)
    ChatCompletion.model_validate(answer, strict=True)
    (choice,) = answer["choices"]
    entries = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == choice["message"]["content"]
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in entries), "greedy"
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    chunks = ask(bundled, stream=True, stream_options={"include_usage": True}, **scored)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    streamed = [
        entry
        for chunk in chunks
        for each in chunk["choices"]
        for entry in (each["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]


def test_three_choices_are_those_of_three_seeds(bundled: Gapless) -> None:
    with sdk_of(bundled) as sdk:

        def texts(**fields: Any) -> list[str | None]:
            made = sdk.chat.completions.create(model="bundled", messages=MESSAGES, temperature=1.5, **fields)
            return [choice.message.content for choice in made.choices]

        assert texts(n=3, seed=11) == [*texts(seed=11), *texts(seed=12), *texts(seed=13)]


def test_without_max_tokens_an_answer_goes_on_until_the_context_ends(gapless: Gapless) -> None:
    """Nothing ends the toy engine's answer before min_tokens."""
    answer = ask(gapless, min_tokens=1900)
    assert answer["usage"]["completion_tokens"] >= 1900
    refusal = ask(gapless, max_tokens=2048)
    assert (refusal["error"]["param"], refusal["error"]["code"]) == ("max_tokens", "context_length_exceeded")


def test_sixteen_clients_of_asyncio_each_get_their_own_answer(gapless: Gapless) -> None:
    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{gapless.front_port}/v1", api_key="none", max_retries=0
        ) as sdk:

            async def one(number: int) -> str:
                stream = await sdk.chat.completions.create(
                    model=(await sdk.models.list()).data[0].id,
                    messages=[{"role": "user", "content": f"{number}"}],
                    temperature=0,
                    max_tokens=60,
                    stream=True,
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, range(16)))

    with Client(f"127.0.0.1:{gapless.grpc_port}") as client:
        expected = [client.generate([user(f"{number}")], max_tokens=60).text for number in range(16)]
    assert asyncio.run(ask_all()) == expected


def test_a_client_that_leaves_gives_the_slots_of_its_choices_back(gapless: Gapless) -> None:
    wait_for(gapless.is_idle, 60)
    cancelled = _num_cancelled(gapless)
    connection = http.client.HTTPConnection("127.0.0.1", gapless.front_port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES, **LONG, "n": 2}))
    wait_for(lambda: gapless.metrics()["gapless_slots_busy"] >= 1, 60)
    connection.close()
    wait_for(lambda: _num_cancelled(gapless) > cancelled, 60)  # an answer that ends is not counted there
    wait_for(gapless.is_idle, 60)


def _num_cancelled(gapless: Gapless) -> float:
    return gapless.metrics().get('gapless_requests_total{outcome="cancelled"}', 0.0)


def health(served: Gapless) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", served.front_port, timeout=60)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_front_that_dies_or_hangs_comes_back_and_no_other_stream_notices(
    gapless: Gapless, number: signal.Signals
) -> None:
    wait_for(lambda: health(gapless) == 200, 30)
    client = gapless.grpc()
    answer = client.ask(text_input="go on", max_tokens=1000, min_tokens=1000)
    client.read_until(lambda: answer.chunks > 2)
    gapless.kill(gapless._pid(lambda line: "gapless-front" in line), number)
    wait_for(lambda: health(gapless) == 200, 60)
    assert ask(gapless, max_tokens=3, ignore_eos=True)["choices"][0]["finish_reason"] == "length"
    client.finish()
    client.close()
    assert (answer.reasons, answer.error) == (["length"], "")
    assert gapless.metrics()['gapless_restarts_total{process="front"}'] >= 1


# --- completions


def test_a_completion_of_texts_and_ids_is_the_ensembles(bundled: Gapless) -> None:
    texts = [f"Convert to camelCase: {name}\n" for name in ("read_line", "write_file")]
    sampling = {"max_tokens": 12, "temperature": 0}
    with Client(f"127.0.0.1:{bundled.grpc_port}") as client:
        expected = [client.generate(text, **sampling).text for text in texts]
        echoed = client.generate(texts[0], exclude_input_in_output=False, **sampling).text
    ids = [bundled.ask_front("/tokenize", {"prompt": text})["tokens"] for text in texts]
    with sdk_of(bundled) as sdk:
        for prompt in (texts, ids):
            whole = sdk.completions.create(model="bundled", prompt=prompt, **sampling)
            assert [choice.text for choice in whole.choices] == expected
            streamed = ["", ""]
            for chunk in sdk.completions.create(model="bundled", prompt=prompt, stream=True, **sampling):
                streamed[chunk.choices[0].index] += chunk.choices[0].text
            assert streamed == expected
        echo = sdk.completions.create(model="bundled", prompt=texts[0], echo=True, **sampling)
        assert echo.choices[0].text == echoed == texts[0] + expected[0]
        scored = sdk.completions.create(model="bundled", prompt=texts[0], logprobs=3, **sampling)
    scores = scored.choices[0].logprobs
    assert "".join(scores.tokens) == expected[0]
    assert [max(top, key=lambda token: top[token]) for top in scores.top_logprobs] == scores.tokens
    assert scores.token_logprobs == [
        top[token] for top, token in zip(scores.top_logprobs, scores.tokens, strict=True)
    ]
    assert scores.text_offset == [len("".join(scores.tokens[:i])) for i in range(len(scores.tokens))]


def test_an_echo_scores_a_text_as_its_answer_was_scored(bundled: Gapless) -> None:
    """As lm-eval asks: what a model has written is as likely as it said, token by token."""
    text, scored = "Convert to camelCase: read_line\n", {"temperature": 0, "logprobs": 2}
    with Client(f"127.0.0.1:{bundled.grpc_port}") as client:
        answer = client.generate(text, max_tokens=12, temperature=0.0, return_log_probs=True)
    count = len(answer.output_ids) - (answer.finish_reason == "stop")  # a text does not end before its end
    before = bundled.ask_front("/tokenize", {"prompt": text})["tokens"]
    prompt = [*before, *answer.output_ids[:count]]
    with sdk_of(bundled) as sdk:
        ask_for = functools.partial(
            sdk.completions.create, model="bundled", prompt=prompt, echo=True, **scored
        )
        both, alone, chunks = ask_for(max_tokens=1), ask_for(max_tokens=0), ask_for(max_tokens=3, stream=True)
        streamed = [chunk.choices[0].logprobs.token_logprobs for chunk in chunks if chunk.choices]
    scores, rest = both.choices[0].logprobs, alone.choices[0].logprobs
    assert scores.token_logprobs[0] is scores.top_logprobs[0] is None
    assert len(scores.tokens) == len(prompt) + 1
    assert (rest.tokens, rest.token_logprobs) == (scores.tokens[:-1], scores.token_logprobs[:-1])
    assert alone.choices[0].text == text + answer.text == "".join(rest.tokens)
    assert (alone.usage.prompt_tokens, alone.usage.completion_tokens) == (len(prompt), 0)
    written = scores.token_logprobs[len(before) : -1]
    assert written == pytest.approx(answer.output_log_probs[:count], abs=1e-3)
    tops = scores.top_logprobs[len(before) : -1]
    assert [max(top.values()) for top in tops] == written, "greedy"
    assert scores.text_offset[len(before)] == len(text)
    assert len(streamed[0]) > len(prompt)
    assert streamed[0][0] is None
    assert None not in [value for values in streamed[1:] for value in values]


def test_a_chat_has_as_many_tokens_as_tokenize_says(bundled: Gapless) -> None:
    count = bundled.ask_front("/tokenize", {"messages": MESSAGES})["count"]
    assert ask(bundled)["usage"]["prompt_tokens"] == count


def test_usage_tells_what_of_a_prompt_was_not_computed_again(bundled: Gapless) -> None:
    turns = [{"role": "user", "content": "Say nothing else. " * 12 + QUESTION}]
    first = ask(bundled, messages=turns)
    turns += [first["choices"][0]["message"] | {"refusal": None}, {"role": "user", "content": QUESTION}]
    chunks = ask(bundled, messages=turns, stream=True, stream_options={"include_usage": True})
    second = chunks[-1]["usage"]
    known = first["usage"]["prompt_tokens"]
    assert 0 < second["prompt_tokens_details"]["cached_tokens"] <= second["prompt_tokens"]
    assert second["prompt_tokens_details"]["cached_tokens"] >= known - 2 * 32, "in whole blocks of 32"


def test_a_prompt_beyond_the_context_has_the_code_that_clients_know(gapless: Gapless) -> None:
    for messages in ([{"role": "user", "content": "é" * 3000}], [{"role": "user", "content": "a é" * 9000}]):
        error = ask(gapless, messages=messages)["error"]
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
