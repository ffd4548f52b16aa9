"""What dies or stands still under open answers, and what clients see: those of the front, by all its
interfaces, the whole answer as if nothing had died; those of Triton's own ports what docs/operations.md says.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import openai
import psutil
import pytest

from tests.support.failure_table import OF_A_SERVER, ROWS, Row
from tests.support.server.onlookers import GrpcOnlooker, HttpOnlooker
from tests.support.server.serving import Gapless, wait_for
from tests.support.server.toy_model import write_toy_model
from tests.support.toy_engine import toy_settings

NUM_TOKENS = 300
LONG: dict[str, Any] = {"max_tokens": NUM_TOKENS, "extra_body": {"min_tokens": NUM_TOKENS}}
OF_TRITON = {  # they take longer than it takes to replace what stands still
    "text_input": "def read(",
    "max_tokens": 700,
    "min_tokens": 700,
}
SHORT = {"text_input": "def write(", "max_tokens": 8, "min_tokens": 8}
CASES: list[dict[str, Any]] = [  # each asked as a stream and as a whole answer
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 1.0, "seed": 8, "n": 3},
    {"temperature": 0.7, "seed": 2, "logprobs": True, "top_logprobs": 2},
]
SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "array", "items": {"enum": [True, False, None, "a"]}, "minItems": 2, "maxItems": 4},
    "minItems": 12,
    "maxItems": 14,
    "x-guidance": {"whitespace_pattern": ""},  # its tokens are for the JSON
}
GUIDED: dict[str, Any] = {
    "temperature": 1.0,
    "seed": 6,
    "n": 4,
    "response_format": {"type": "json_schema", "json_schema": {"name": "lists", "schema": SCHEMA}},
}
NAME = "model"
PROCESSES = ("tritonserver", "scheduler", "tokenizer", "detokenizer", "instance")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gapless]:
    """10 ms a step: an answer takes three seconds."""
    model = write_toy_model(tmp_path_factory.mktemp("models") / NAME)
    with Gapless(**{**toy_settings(model, step_ms=10), "streams.dead_after_s": 3}) as made:
        yield made


@pytest.fixture(scope="module")
def sdk(served: Gapless) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{served.front_port}/v1", api_key="none", max_retries=0, timeout=300
    ) as made:
        yield made


def pid_of(served: Gapless, process: str) -> int:
    if process == "tritonserver":
        return served.server_pid()
    return served.instance_pid() if process == "instance" else served.stub_pid(process)


def kill(served: Gapless, process: str) -> None:
    served.kill(pid_of(served, process))


class Counter:
    """How many pieces have come, to all."""

    def __init__(self) -> None:
        self.num = 0


def chat(sdk: openai.OpenAI, number: int, case: dict[str, Any], counter: Counter) -> list[Any]:
    """The choices of a streamed chat: text, tokens with their log-probabilities, and reason."""
    made: dict[int, list[Any]] = {}
    messages = [{"role": "user", "content": f"{number}"}]
    fields = {"max_tokens": NUM_TOKENS} if case is GUIDED else LONG
    for chunk in sdk.chat.completions.create(model=NAME, messages=messages, stream=True, **case, **fields):
        for choice in chunk.choices:
            text, scores, _ = made.setdefault(choice.index, ["", [], None])
            text += choice.delta.content or ""
            scores += [] if choice.logprobs is None else [each.to_dict() for each in choice.logprobs.content]
            made[choice.index] = [text, scores, choice.finish_reason]
            counter.num += 1
    return [made[index] for index in sorted(made)]


def whole_chat(sdk: openai.OpenAI, number: int, case: dict[str, Any], _: Counter) -> list[Any]:
    messages = [{"role": "user", "content": f"{number}"}]
    answer = sdk.chat.completions.create(model=NAME, messages=messages, **case, **LONG)
    return [
        [
            choice.message.content,
            [] if choice.logprobs is None else [each.to_dict() for each in choice.logprobs.content],
            choice.finish_reason,
        ]
        for choice in answer.choices
    ]


def completion(sdk: openai.OpenAI, number: int, case: dict[str, Any], counter: Counter) -> list[Any]:
    case = {name: value for name, value in case.items() if not name.endswith("logprobs")}
    texts: dict[int, str] = {}
    for chunk in sdk.completions.create(
        model=NAME, prompt=f"{number}", stream=True, echo=True, **case, **LONG
    ):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            counter.num += 1
    return [texts[index] for index in sorted(texts)]


def response(sdk: openai.OpenAI, number: int, case: dict[str, Any], counter: Counter) -> list[Any]:
    text, ends = "", []
    for event in sdk.responses.create(
        model=NAME, input=f"{number}", stream=True, max_output_tokens=NUM_TOKENS, **case
    ):
        if event.type == "response.output_text.delta":
            text += event.delta
            counter.num += 1
        elif event.type in ("response.completed", "response.incomplete"):
            ends.append((event.type, event.response.output_text == text))
    return [text, ends]


def message(sdk: openai.OpenAI, number: int, case: dict[str, Any], counter: Counter) -> list[Any]:
    """By Anthropic's interface."""
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": f"{number}"}],
        "max_tokens": NUM_TOKENS,
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", sdk.base_url.port, timeout=300)
    connection.request("POST", "/v1/messages", json.dumps({**body, **case}))
    text, ends = "", []
    for line in connection.getresponse():
        said = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: ") else {}
        if said.get("type") == "content_block_delta":
            text += said["delta"]["text"]
            counter.num += 1
        elif said.get("type") in ("message_delta", "message_stop", "error"):
            ends.append(said)
    connection.close()
    assert ends[-1]["type"] == "message_stop", ends
    return [text, ends[0]["delta"]["stop_reason"], ends[0]["usage"]["output_tokens"]]


REQUESTS = [(ask, case) for ask in (chat, whole_chat, completion) for case in CASES]
REQUESTS += [(ask, CASES[0]) for ask in (response, message)]
REQUESTS += [(chat, GUIDED)]


def begin(sdk: openai.OpenAI, pool: ThreadPoolExecutor, counter: Counter) -> list[Future[list[Any]]]:
    return [pool.submit(ask, sdk, number, case, counter) for number, (ask, case) in enumerate(REQUESTS)]


NUM_ANSWERS = sum(case.get("n", 1) for _, case in REQUESTS)


def num_arrived(metrics: dict[str, float]) -> float:
    """Requests that the scheduler has seen since it was started."""
    ended = sum(count for name, count in metrics.items() if name.startswith("gapless_requests_total"))
    return ended + metrics["gapless_slots_busy"] + metrics["gapless_requests_waiting"]


def num_restarts(metrics: dict[str, float], process: str) -> float:
    """How often it was started again. A detokenizer that stands still may take the scheduler with it, which
    is counted then.
    """
    counted = {"instance": ["instance-0"], "detokenizer": ["detokenizer", "scheduler"]}
    names = counted.get(process, [process])
    return sum(metrics[f'gapless_restarts_total{{process="{name}"}}'] for name in names)


def results(begun: list[Future[list[Any]]]) -> list[list[Any]]:
    return [each.result(300) for each in begun]


@pytest.fixture(scope="module")
def expected(sdk: openai.OpenAI) -> list[list[Any]]:
    """Without a kill."""
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        return results(begin(sdk, pool, Counter()))


def test_four_answers_of_one_request_follow_its_schema(expected: list[list[Any]]) -> None:
    """Those that the kills below must not change."""
    four = expected[REQUESTS.index((chat, GUIDED))]
    assert [reason for _, _, reason in four] == ["stop"] * 4
    for text, _, _ in four:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert len({text for text, _, _ in four}) == 4


def test_the_failure_table_has_every_process() -> None:
    every = {(process, how) for process in PROCESSES for how in ("is killed", "stands still")}
    assert {(row.process, row.how) for row in OF_A_SERVER} == every
    assert {row.process for row in ROWS} == {*PROCESSES, "launcher", "init"}


def in_its_circle(row: Row) -> Any:
    """What stands still is noticed in one way, so that one of these rows is enough for `make test`."""
    is_slow = row.how == "stands still" and row.process != "instance"
    return pytest.param(row, marks=pytest.mark.slow) if is_slow else row


@pytest.fixture(scope="module")
def undisturbed(served: Gapless) -> str:
    """What Triton's own clients get without a kill."""
    onlooker = HttpOnlooker(served.http_port, OF_TRITON)
    onlooker.join()
    assert onlooker.saw == "the whole answer"
    return onlooker.answer.text


@pytest.mark.parametrize("row", [in_its_circle(row) for row in OF_A_SERVER], ids=str)
def test_what_dies_or_stands_still_is_healed_and_clients_see_what_the_table_says(
    served: Gapless, sdk: openai.OpenAI, expected: list[list[Any]], undisturbed: str, row: Row
) -> None:
    assert row.front == "the whole answer"
    wait_for(served.is_ready, 60)  # a row does not suffer from the one before
    before, numbers = {process: pid_of(served, process) for process in PROCESSES}, served.metrics()
    onlookers = [HttpOnlooker(served.http_port, OF_TRITON), GrpcOnlooker(served.grpc_port, OF_TRITON)]
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        begun = begin(sdk, pool, Counter())
        for onlooker in onlookers:
            onlooker.wait_for_text()
        # none is inside the tokenizer, which might not be unloaded then
        arrived = num_arrived(numbers) + NUM_ANSWERS + len(onlookers)
        wait_for(lambda: num_arrived(served.metrics()) >= arrived, 60)
        served.kill(before[row.process], row.signal)
        newcomer = HttpOnlooker(served.http_port, SHORT)
        too_short = "the answers were too short to be interrupted"
        assert not any(onlooker.answer.reasons for onlooker in onlookers), too_short
        assert not all(each.done() for each in begun), too_short
        if row.how == "stands still" and row.process not in ("instance", "tritonserver"):
            wait_for(lambda: not served.is_ready(), 30)  # it does not say that it is ready
        assert results(begun) == expected
    wait_for(lambda: pid_of(served, row.process) != before[row.process], 90)
    wait_for(served.is_ready, 90)
    assert served.generate_stream(**SHORT).reasons == ["length"]
    for onlooker in onlookers:
        onlooker.join()
        assert onlooker.saw in row.stream.split(" or "), onlooker.answer.error + onlooker.closed
        assert onlooker.answer.num_ends <= 1
        if onlooker.saw == "the whole answer":
            assert onlooker.answer.text == undisturbed
        assert undisturbed.startswith(onlooker.answer.text)
    newcomer.join()
    assert newcomer.saw in row.newcomer.split(" or ")
    if row.process != "instance":
        assert pid_of(served, "instance") == before["instance"], "it stays, and drops what it had"
    if row.process in ("instance", "tokenizer"):
        assert pid_of(served, "tritonserver") == before["tritonserver"], "the others did not notice"
    wait_for(served.is_idle, 60)
    assert num_restarts(served.metrics(), row.process) == num_restarts(numbers, row.process) + 1


@pytest.mark.slow
def test_all_of_them_die_one_after_the_other(
    served: Gapless, sdk: openai.OpenAI, expected: list[list[Any]]
) -> None:
    counter = Counter()
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        begun = begin(sdk, pool, counter)
        for process in PROCESSES:
            seen = counter.num
            wait_for(lambda seen=seen: counter.num > seen + 20 or any(each.done() for each in begun), 180)
            kill(served, process)
        assert results(begun) == expected


def test_a_request_that_comes_while_the_server_is_away_is_answered(
    served: Gapless, sdk: openai.OpenAI, expected: list[list[Any]]
) -> None:
    server = served.server_pid()
    kill(served, "tritonserver")
    wait_for(lambda: not psutil.pid_exists(server) or psutil.Process(server).status() == "zombie", 10)
    assert chat(sdk, 0, CASES[0], Counter()) == expected[0]


def test_a_real_model_draws_and_penalizes_as_without_the_kill(bundled: Gapless) -> None:
    """In float32. The answer of 300 tokens repeats itself without penalties."""
    case = {"temperature": 0.9, "seed": 11, "n": 2, "logprobs": True, "frequency_penalty": 0.4}
    fields = {"repetition_penalty": 1.1, "min_tokens": 300}

    def ask(counter: Counter) -> list[Any]:
        made: list[list[Any]] = [["", []], ["", []]]
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{bundled.front_port}/v1", api_key="none", max_retries=0, timeout=300
        ) as sdk:
            messages = [{"role": "user", "content": "Convert to camelCase: def read_all(file_name): pass"}]
            for chunk in sdk.chat.completions.create(
                model=sdk.models.list().data[0].id,
                messages=messages,
                stream=True,
                max_tokens=300,
                extra_body=fields,
                **case,
            ):
                for choice in chunk.choices:
                    made[choice.index][0] += choice.delta.content or ""
                    if choice.logprobs is not None:
                        made[choice.index][1] += [each.token for each in choice.logprobs.content]
                counter.num += 1
        return made

    undisturbed, counter = ask(Counter()), Counter()
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(ask, counter)
        wait_for(lambda: counter.num > 10, 60)
        assert not begun.done()
        kill(bundled, "scheduler")
        assert begun.result(300) == undisturbed
    assert len(undisturbed[0][1]) >= 290
