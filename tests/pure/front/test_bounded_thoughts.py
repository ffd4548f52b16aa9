"""Thoughts with a budget: what the ensemble is asked, and what comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from client.wire import Piece
from front.bounded_thoughts import SENTENCE
from tests.pure.front.conftest import MESSAGES
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask, events
from tests.support.tool_model import Answers

CHAT, MESSAGE = "/v1/chat/completions", "/v1/messages"
CLOSING = f"{SENTENCE}</think>\n\n"
THOUGHT = "<think>\nWhich city"


@pytest.fixture
def answers(tool_model: Path) -> Answers:
    return Answers(tool_model)


@pytest.fixture
def tokenizer(tool_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tool_model / "tokenizer.json"))


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def cut(answers: Answers, text: str, sizes: tuple[int, ...] = (2,)) -> list[Piece]:
    """What the ensemble gives of an answer whose first tokens are `text`."""
    return answers.pieces(text, sizes, "length")


@pytest.mark.parametrize("sizes", [(1,), (3, 1), (500,)])
def test_a_thought_that_is_open_is_closed_and_the_answer_goes_on(
    tool_front: Front, ensemble: Ensemble, answers: Answers, tokenizer: Tokenizer, sizes: tuple[int, ...]
) -> None:
    begun, budget = ids(tokenizer, THOUGHT), len(ids(tokenizer, THOUGHT))
    ensemble.turns = [cut(answers, THOUGHT, sizes), answers.pieces("Łódź.")]
    body = {"messages": MESSAGES, "thinking_token_budget": budget, "max_tokens": 900, "seed": 1}
    answer = ask(tool_front, CHAT, body)[2]
    first, rest = ensemble.asked[-2:]
    assert (first["max_tokens"], rest["max_tokens"]) == (budget, 900)
    assert first["seed"] == rest["seed"]
    assert "delivered_ids" not in first
    assert list(rest["delivered_ids"]) == [*begun, *ids(tokenizer, CLOSING)]
    message = answer["choices"][0]["message"]
    assert message["reasoning"] == (THOUGHT.removeprefix("<think>\n") + SENTENCE).strip()
    assert message["content"] == "Łódź."
    made = len(begun) + len(ids(tokenizer, CLOSING)) + len(ids(tokenizer, "Łódź."))
    assert answer["usage"]["completion_tokens"] in (made, made + 1)  # its end is a token, too


def test_an_answer_without_an_open_thought_goes_on_where_it_was(
    tool_front: Front, ensemble: Ensemble, answers: Answers, tokenizer: Tokenizer
) -> None:
    """Without the last piece, of whose text something may have been held back."""
    text = "<think>\nHm.</think>\n\nIt is Łó"
    first = cut(answers, text, (len(ids(tokenizer, text)) - 2, 2))
    whole = answers.pieces("<think>\nHm.</think>\n\nIt is Łódź.", (len(ids(tokenizer, text)) - 2, 1))
    ensemble.turns = [first, whole[1:]]
    budget = len(ids(tokenizer, text))
    body = {"messages": MESSAGES, "thinking_token_budget": budget}
    message = ask(tool_front, CHAT, body)[2]["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("It is Łódź.", "Hm.")
    assert list(ensemble.asked[-1]["delivered_ids"]) == ids(tokenizer, text)[:-2]


def test_a_mark_that_is_spelled_in_letters_opens_no_thought(
    tool_front: Front, ensemble: Ensemble, tokenizer: Tokenizer
) -> None:
    """Its tokens are those of the letters, not the mark's own."""
    said = "Write <think> first"
    tokens = [token for each in said for token in ids(tokenizer, each)]
    pieces = [
        Piece(tool_front.model.spelled(token, False)[0], num_output_tokens=1, output_ids=(token,))
        for token in tokens
    ]
    pieces[-1] = replace(pieces[-1], finish_reason="length")
    ensemble.turns = [pieces, [replace(pieces[-1], finish_reason="stop")]]
    body = {"messages": MESSAGES, "thinking_token_budget": len(tokens)}
    message = ask(tool_front, CHAT, body)[2]["choices"][0]["message"]
    assert list(ensemble.asked[-1]["delivered_ids"]) == tokens[:-1]
    assert (message["content"], message.get("reasoning")) == (said, None)


def test_an_answer_that_ends_before_is_asked_for_once(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces("<think>\nHm.</think>\n\nYes.")
    asked = len(ensemble.asked)
    for more in ({}, {"max_tokens": 30}):  # the latter leaves no room for a sentence
        body = {"messages": MESSAGES, "thinking_token_budget": 25, **more}
        assert ask(tool_front, CHAT, body)[2]["choices"][0]["message"]["content"] == "Yes."
    assert [each["max_tokens"] for each in ensemble.asked[asked:]] == [25, 30]


def test_anthropics_budget_closes_a_thought_that_the_template_has_opened(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.turns = [cut(answers, "Which city"), answers.pieces("Łódź.")]
    thinking = {"type": "enabled", "budget_tokens": 9}
    body = {"messages": MESSAGES, "max_tokens": 900, "thinking": thinking}
    came = events(tool_front, MESSAGE, body)
    deltas = [data["delta"] for name, data in came if name == "content_block_delta"]
    thought = "".join(each.get("thinking", "") for each in deltas)
    assert thought == f"Which city{SENTENCE}".rstrip()
    assert "".join(each.get("text", "") for each in deltas) == "Łódź."
    assert ensemble.asked[-2]["max_tokens"] == 9


def test_where_the_context_has_fewer_tokens_left_the_answer_ends_there(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    ensemble.pieces = answers.pieces("Yes.")
    ensemble.errors = ["max_tokens = 700: must be at most 12 [invalid_value]"]
    body: dict[str, Any] = {"messages": MESSAGES, "thinking_token_budget": 700}
    assert ask(tool_front, CHAT, body)[2]["choices"][0]["message"]["content"] == "Yes."
    assert ensemble.asked[-1]["max_tokens"] == -1


def test_a_thought_that_leaves_no_room_for_an_answer_is_an_answer_that_was_cut(
    tool_front: Front, ensemble: Ensemble, answers: Answers
) -> None:
    refused = "delivered_ids = 706 ids: must be fewer than max_tokens [invalid_value]"
    ensemble.turns, ensemble.errors = [cut(answers, THOUGHT)], ["", refused, refused]
    body = {"messages": MESSAGES, "thinking_token_budget": 9}
    status, _, answer = ask(tool_front, CHAT, body)
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["reasoning"].startswith("Which city")
    assert answer["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize("budget", [0, -3, "many"])
def test_a_budget_is_a_number_of_tokens(tool_front: Front, budget: Any) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    body = {"messages": MESSAGES, "max_tokens": 9, "thinking": thinking}
    status, _, answer = ask(tool_front, MESSAGE, body)
    assert status == 400
    assert answer["error"]["message"].startswith(f"thinking.budget_tokens = {budget}: must be a whole number")
