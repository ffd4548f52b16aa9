"""Sampling as clients ask for it: bad words and stop ids from text to text,
log-probabilities as tensors, also when instances die.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from python_backends.engine.toy.engine import toy_log_probs
from tests.support.server.expected import FORTY, PROMPT, Expected
from tests.support.server.serving import Answer, Gapless
from tests.support.server.toy_model import VOCAB_SIZE

ASKS = {"return_log_probs": True, "num_top_log_probs": 3}


@pytest.fixture(scope="module")
def bundled() -> Iterator[Gapless]:
    served = Gapless(**{"model.dtype": "float32"})
    yield served
    assert served.stop() == 0, served.log


def flat(answer: Answer, name: str) -> list[Any]:
    """Output `name` of all responses, one behind the other."""
    arrays = [array.ravel() for result in answer.results if (array := result.as_numpy(name)) is not None]
    return np.concatenate(arrays).tolist() if arrays else []


def first(answer: Answer, name: str) -> np.ndarray[Any, Any]:
    """Output `name` of the first response that has it; an answer that begins late has an empty one before."""
    return next(array for result in answer.results if (array := result.as_numpy(name)) is not None)


def check(
    tokens: list[int], ids: list[int], chosen: list[float], top_ids: list[int], top: list[float]
) -> None:
    scores = [toy_log_probs(token, 3, VOCAB_SIZE) for token in tokens]
    assert ids == tokens
    assert chosen == [float(score.chosen[0]) for score in scores]
    assert top_ids == [int(token) for score in scores for token in score.top_ids]
    assert top == [float(value) for score in scores for value in score.top]


def test_an_answer_in_one_piece_brings_all_its_log_probabilities(
    gapless: Gapless, expected: Expected
) -> None:
    answer = gapless.generate(text_input=PROMPT, **FORTY, **ASKS)
    tokens = expected.tokens(PROMPT, **FORTY)
    assert answer["text_output"] == expected.text(PROMPT, **FORTY)
    check(
        tokens, answer["output_ids"], answer["output_log_probs"], answer["top_ids"], answer["top_log_probs"]
    )
    assert answer["cum_log_probs"] == pytest.approx(sum(answer["output_log_probs"]))


def test_who_did_not_ask_gets_no_log_probabilities(gapless: Gapless) -> None:
    answer = gapless.generate(text_input=PROMPT, **FORTY)
    assert not {"output_ids", "output_log_probs", "cum_log_probs", "top_ids", "top_log_probs"} & set(answer)
    answer = gapless.generate(text_input=PROMPT, **FORTY, return_log_probs=True)
    assert len(answer["output_log_probs"]) == 40
    assert "top_ids" not in answer


def test_streams_bring_each_log_probability_once_although_the_instance_dies(
    gapless: Gapless, expected: Expected
) -> None:
    """Every other stream asks; all have text of their own."""
    long = {"max_tokens": 200, "min_tokens": 200}
    client = gapless.grpc()
    answers = [
        client.ask(f"{n}", text_input=f"{PROMPT} {n}", **long, **(ASKS if n % 2 else {})) for n in range(16)
    ]
    client.read_until(lambda: all(answer.chunks > 2 for answer in answers))
    gapless.kill(gapless.instance_pid())
    client.finish()
    client.close()
    for n, answer in enumerate(answers):
        assert (answer.error, answer.text) == ("", expected.text(f"{PROMPT} {n}", **long))
        if n % 2:
            names = ("output_ids", "output_log_probs", "top_ids", "top_log_probs")
            check(expected.tokens(f"{PROMPT} {n}", **long), *(flat(answer, name) for name in names))
            assert flat(answer, "cum_log_probs")[-1] == pytest.approx(sum(flat(answer, "output_log_probs")))
            assert first(answer, "output_log_probs").shape[:2] == (1, 1)
        else:
            assert flat(answer, "output_ids") == []


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_word_ends_log_probabilities_with_the_answer(
    gapless: Gapless, expected: Expected, stream: bool
) -> None:
    prompt = max(
        (f"{PROMPT} {n}" for n in range(50)), key=lambda text: len(expected.tokens(text, max_tokens=40))
    )
    tokens = expected.tokens(prompt, max_tokens=40)
    whole = expected.text(prompt, max_tokens=40)
    word = next(
        whole[i : i + 3] for i in range(len(whole) // 2, len(whole)) if "\ufffd" not in whole[i : i + 3]
    )
    client = gapless.grpc()
    answer = client.ask(text_input=prompt, max_tokens=40, stop_words=[word], stream=stream, **ASKS)
    client.finish()
    client.close()
    assert answer.text == whole.split(word)[0]
    assert answer.reasons == ["stop"]
    ids = flat(answer, "output_ids")
    assert len(ids) == len(flat(answer, "output_log_probs")) == answer.num_output_tokens < len(tokens)
    assert ids == tokens[: len(ids)]
    assert word in expected.decode(ids)


def test_a_bad_word_is_never_completed(gapless: Gapless, expected: Expected) -> None:
    """Words that the answer would have, each of one token."""
    decoded = {token: expected.decode([token]) for token in expected.tokens(PROMPT, **FORTY)}
    words = [
        text for token, text in decoded.items() if expected.ids(text) == [token] and "\ufffd" not in text
    ][:3]
    assert words
    spellings = [
        spelling for word in words for spelling in ([word] if word[0].isspace() else [word, f" {word}"])
    ]
    banned = tuple(tuple(expected.ids(spelling)) for spelling in spellings)
    text = gapless.generate(text_input=PROMPT, **FORTY, bad_words=words)["text_output"]
    assert text == expected.text(PROMPT, **FORTY, bad_words=banned)
    assert text != expected.text(PROMPT, **FORTY)


def test_a_stop_token_id_ends_the_answer(gapless: Gapless, expected: Expected) -> None:
    tokens = expected.tokens(PROMPT, max_tokens=40)
    last = tokens.index(tokens[5])
    asked = {
        "text_input": PROMPT,
        "max_tokens": 40,
        "stop_token_ids": [tokens[5], 3],
        "return_num_output_tokens": True,
    }
    answer = gapless.generate(**asked)
    assert (answer["finish_reason"], answer["num_output_tokens"]) == ("stop", last + 1)
    client = gapless.grpc()
    streamed = client.ask(**asked)
    client.finish()
    client.close()
    assert (streamed.text, streamed.reasons) == (answer["text_output"], ["stop"])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"repetition_penalty": 0.0},
            "repetition_penalty = 0.0: must be a finite number between 0.0625 and 16",
        ),
        (
            {"presence_penalty": 1e9},
            "presence_penalty = 1000000000.0: must be a finite number between -2 and 2",
        ),
        ({"min_p": -0.5}, "min_p = -0.5: must be a finite number between 0 and 1"),
        (
            {"num_top_log_probs": 2},
            "num_top_log_probs = 2: needs return_log_probs = true, must be 0 or absent without",
        ),
        (
            {"stop_token_ids": [VOCAB_SIZE]},
            f"stop_token_ids[0] = {VOCAB_SIZE}: must be a whole number between 0 and {VOCAB_SIZE - 1}",
        ),
        ({"bad_words": ["zqxj zqxj"]}, "must have 1 to 4, also after a space"),
    ],
)
def test_what_is_refused_is_named(gapless: Gapless, inputs: dict[str, Any], message: str) -> None:
    answer = gapless.generate(text_input=PROMPT, **inputs)
    assert answer["status"] == 400
    assert message in answer["error"]


def test_penalties_survive_a_killed_instance_with_the_same_text(bundled: Gapless) -> None:
    """The torch engine, float32 and greedy: penalties and bad words
    rebuild from prompt and delivered tokens.
    """
    kinds: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"bad_words": ["self"]},
        {},
    ]
    inputs = [
        {"text_input": f"def read_{n}(self, size", "max_tokens": 80, "min_tokens": 80, **kinds[n % 4]}
        for n in range(8)
    ]
    client = bundled.grpc()
    before = [client.ask(f"before {n}", **each) for n, each in enumerate(inputs)]
    client.finish(120)
    undisturbed = [answer.text for answer in before]
    answers = [client.ask(f"{n}", **each, return_log_probs=True) for n, each in enumerate(inputs)]
    client.read_until(lambda: all(answer.chunks > 2 for answer in answers), 120)
    bundled.kill(bundled.instance_pid())
    client.finish(120)
    client.close()
    assert [answer.text for answer in answers] == undisturbed
    assert all(len(flat(answer, "output_log_probs")) == 80 for answer in answers)
    assert all("self" not in undisturbed[n] for n in (2, 6))


def test_a_log_probability_is_what_the_model_thinks(bundled: Gapless) -> None:
    """Greedy: the chosen token is the most probable one, and all probabilities are below 1."""
    messages = json.dumps([{"role": "user", "content": "Convert to camelCase: read_all_lines"}])
    answer = bundled.generate(messages=messages, **ASKS)
    assert answer["output_ids"] == answer["top_ids"][::3]
    assert answer["output_log_probs"] == answer["top_log_probs"][::3]
    assert all(value <= 0 for value in answer["top_log_probs"])
