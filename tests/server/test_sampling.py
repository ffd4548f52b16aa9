"""Sampling as clients ask for it: bad words and stop ids from text to text,
log-probabilities as tensors, also when instances die.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.server.expected import FORTY, PROMPT, Expected
from tests.support.server.serving import Answer, Gapless
from tests.support.server.toy_model import VOCAB_SIZE
from tests.support.toy_engine import toy_log_probs

ASKS = {"return_log_probs": True, "num_top_log_probs": 3}


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


def of_prompt(answer: Answer) -> tuple[list[Any], ...]:
    """Its tokens, and what `check` compares."""
    names = ("prompt_log_probs", "prompt_top_ids", "prompt_top_log_probs")
    return flat(answer, "prompt_ids"), *(flat(answer, name) for name in names)


def test_log_probabilities_of_prompts_come_once_although_the_instance_dies_within_them(
    gapless: Gapless, expected: Expected
) -> None:
    """Steps score 64 tokens: when the first answer begins, the other prompts are not computed. Every third
    one asks for nothing.
    """
    prompts = [f"{n} {PROMPT * 50}" for n in range(9)]
    client = gapless.grpc()
    answers = [
        client.ask(
            f"{n}", text_input=prompt, **FORTY, **(ASKS | {"return_prompt_log_probs": True} if n % 3 else {})
        )
        for n, prompt in enumerate(prompts)
    ]
    client.read_until(lambda: any(flat(answer, "prompt_ids") for answer in answers))
    gapless.kill(gapless.instance_pid())
    client.finish()
    client.close()
    for n, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        assert (answer.error, answer.text) == ("", expected.text(prompt, **FORTY))
        ids = expected.ids(prompt) if n % 3 else []
        tokens, *scores = of_prompt(answer)
        assert tokens == ids
        check(ids[1:], ids[1:], *scores)


def test_a_prompt_comes_back_alone_with_its_log_probabilities(gapless: Gapless, expected: Expected) -> None:
    asked = {"max_tokens": 0, "return_num_output_tokens": True, **ASKS, "return_prompt_log_probs": True}
    answer = gapless.generate(text_input=PROMPT, **asked)
    assert (answer["text_output"], answer["num_output_tokens"], answer["finish_reason"]) == ("", 0, "length")
    ids = expected.ids(PROMPT)
    assert answer["prompt_ids"] == ids
    found = (answer[f"prompt_{name}"] for name in ("log_probs", "top_ids", "top_log_probs"))
    check(ids[1:], ids[1:], *found)
    echoed = gapless.generate(text_input=PROMPT, max_tokens=0, exclude_input_in_output=False)
    assert echoed["text_output"] == PROMPT


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


def test_penalties_survive_a_killed_instance_with_the_same_text(bundled: Gapless) -> None:
    """Float32 and greedy, 16 streams: penalties and bad words rebuild from prompt and delivered tokens."""
    kinds: list[dict[str, Any]] = [
        {"repetition_penalty": 1.3, "return_log_probs": True},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5, "return_log_probs": True},
        {"bad_words": ["self"], "return_log_probs": True},
        {"logit_bias_ids": [20, 30], "logit_bias_values": [-100.0, 4.0]},
    ]
    inputs = [
        {"text_input": f"def read_{n}(self, size", "max_tokens": 80, "min_tokens": 80, **kinds[n % 4]}
        for n in range(16)
    ]
    client = bundled.grpc()
    before = [client.ask(f"before {n}", **each) for n, each in enumerate(inputs)]
    client.finish(120)
    undisturbed = [answer.text for answer in before]
    answers = [client.ask(f"{n}", **each) for n, each in enumerate(inputs)]
    client.read_until(lambda: all(answer.chunks > 2 for answer in answers), 120)
    bundled.kill(bundled.instance_pid())
    client.finish(120)
    client.close()
    assert [(answer.text, answer.reasons) for answer in answers] == [
        (text, ["length"]) for text in undisturbed
    ]
    assert [len(flat(answer, "output_log_probs")) for answer in answers] == [80, 80, 80, 0] * 4
    assert not any("self" in text for text in undisturbed[2::4])
