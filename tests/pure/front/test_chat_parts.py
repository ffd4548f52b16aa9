"""Thoughts and calls of tools in chats, by OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from client.wire import Piece
from tests.pure.front.conftest import KEY, MESSAGES
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask, sent
from tests.support.tool_model import ANSWER, ARGUMENTS, FUNCTION, NOW, TEXT, THOUGHT, Answers

PATH = "/v1/chat/completions"
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}, {"type": "function", "function": NOW}]
BODY = {"messages": MESSAGES, "tools": TOOLS}


@pytest.fixture
def tool_sdk(tool_front: Front) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tool_front.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture
def answers(tool_model: Path) -> Answers:
    return Answers(tool_model)


def chunks_of(front: Front, **body: Any) -> list[Any]:
    *events, end = sent(front, PATH, {**BODY, **body, "stream": True})[2].removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    return [json.loads(each.removeprefix("data: ")) for each in events]


def test_a_whole_answer_has_thought_text_and_calls(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces(ANSWER)
    answer = ask(tool_front, PATH, BODY)[2]
    ChatCompletion.model_validate(answer, strict=True)
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == (
        TEXT,
        THOUGHT,
        THOUGHT,
    )
    called = [(call["type"], *call["function"].values()) for call in message["tool_calls"]]
    assert called == [("function", "weather", ARGUMENTS), ("function", "now", "{}")]
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("sizes", [(1,), (3, 2), (500,)])
def test_a_stream_says_the_same_in_deltas(
    tool_front: Front, tool_sdk: openai.OpenAI, ensemble: Ensemble, answers: Answers, sizes: tuple[int, ...]
) -> None:
    ensemble.pieces = answers.pieces(ANSWER, sizes)
    chunks = chunks_of(tool_front)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == THOUGHT
    begun = [call for delta in deltas for call in delta.get("tool_calls", ()) if "id" in call]
    assert [(call["index"], call["function"]["name"], call["function"]["arguments"]) for call in begun] == [
        (0, "weather", ""),
        (1, "now", ""),
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "tool_calls"]
    with tool_sdk.chat.completions.stream(model="tools", messages=MESSAGES, tools=TOOLS) as stream:
        list(stream)
        message = stream.get_final_completion().choices[0].message
    assert message.content == TEXT
    assert [call.function.arguments for call in message.tool_calls or ()] == [ARGUMENTS, "{}"]


def test_without_tools_or_with_none_a_call_is_text(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces(ANSWER)
    for body in ({"messages": MESSAGES}, {**BODY, "tool_choice": "none"}):
        (choice,) = ask(tool_front, PATH, body)[2]["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"] == ANSWER.partition("</think>\n\n")[2]
        assert "tool_calls" not in choice["message"]


def test_one_call_alone_where_several_may_not_be(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces(ANSWER, (4,))
    (choice,) = ask(tool_front, PATH, {**BODY, "parallel_tool_calls": False})[2]["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]


def test_a_thought_that_the_template_opens_begins_the_answer(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces("Hm.\n</think>\n\nYes.")
    for enabled, wanted in ((True, ("Yes.", "Hm.")), (False, ("Hm.\n</think>\n\nYes.", None))):
        body = {"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": enabled}}
        message = ask(tool_front, PATH, body)[2]["choices"][0]["message"]
        assert (message["content"], message.get("reasoning")) == wanted


def test_thoughts_and_calls_that_the_prompt_shows_change_nothing(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    """Examples that open a thought and close none, in each role."""
    shown = f"Begin with <think>, then write {ANSWER.replace('</think>', '')}"
    messages = [{"role": role, "content": shown} for role in ("system", "user", "assistant", "user")]
    for body in ({"messages": messages}, {**BODY, "messages": messages}):
        ensemble.pieces = answers.pieces("Yes.", (1,))
        message = ask(tool_front, PATH, body)[2]["choices"][0]["message"]
        assert (message["content"], message.get("reasoning")) == ("Yes.", None)
        ensemble.pieces = answers.pieces(ANSWER, (1,))
        message = ask(tool_front, PATH, body)[2]["choices"][0]["message"]
        assert message["reasoning"] == THOUGHT
        assert message["content"].startswith(TEXT)


def test_what_the_limit_cut_is_no_complete_call(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    cut = ANSWER.partition('Łódź"')[0]
    ensemble.pieces = answers.pieces(cut, (2,), "length")
    (choice,) = ask(tool_front, PATH, BODY)[2]["choices"]
    assert choice["finish_reason"] == "length"
    assert chunks_of(tool_front)[-1]["choices"][0]["finish_reason"] == "length"


def test_a_custom_tool_gets_its_text(tool_front: Front, ensemble: Ensemble, answers: Answers) -> None:
    call = json.dumps({"name": "patch", "arguments": {"input": "*** Begin\n"}})
    ensemble.pieces = answers.pieces(f"<tool_call>{call}</tool_call>")
    body = {"messages": MESSAGES, "tools": [{"type": "custom", "custom": {"name": "patch"}}]}
    answer = ask(tool_front, PATH, body)[2]
    ChatCompletion.model_validate(answer, strict=True)
    (called,) = answer["choices"][0]["message"]["tool_calls"]
    assert (called["type"], called["custom"]) == ("custom", {"name": "patch", "input": "*** Begin\n"})


def test_choices_have_their_own_calls(tool_front: Front, ensemble: Ensemble, answers: Answers) -> None:
    ensemble.pieces = answers.pieces(ANSWER, (5,))
    found: dict[int, str] = {0: "", 1: ""}
    for chunk in chunks_of(tool_front, n=2):
        (choice,) = chunk["choices"]
        for call in choice["delta"].get("tool_calls", ()):
            found[choice["index"]] += call["function"]["arguments"] if call["index"] == 0 else ""
    assert found == {0: ARGUMENTS, 1: ARGUMENTS}


def test_log_probabilities_stay_with_their_tokens(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    pieces = answers.pieces(ANSWER, (3,))
    scored = [
        Piece(
            each.text,
            each.finish_reason,
            output_ids=each.output_ids,
            output_log_probs=tuple(-0.5 for _ in each.output_ids),
        )
        for each in pieces
    ]
    ensemble.pieces = scored
    chunks = chunks_of(tool_front, logprobs=True)
    scores = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    num_tokens = sum(len(each.output_ids) for each in pieces) - 1  # the end has none
    assert sum(len(each["content"]) for each in scores) == num_tokens
