"""Streams that something happens to, and whose texts stay those of the toy engine undisturbed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.server.expected import PROMPT, Expected
from tests.support.server.serving import Answer, Gapless, GrpcClient


@contextmanager
def whole_answers(gapless: Gapless, expected: Expected, count: int, **inputs: Any) -> Iterator[GrpcClient]:
    """The body runs once all of `count` streams have begun; then each must end once, and be whole."""
    client = gapless.grpc()
    answers = {n: client.ask(f"{n}", text_input=f"{PROMPT} {n}", **inputs) for n in range(count)}
    client.read_until(lambda: all(answer.chunks > 2 for answer in answers.values()))
    yield client
    client.finish(180)
    client.drain(0.2)
    client.close()
    check_whole(answers, expected, **inputs)


def check_whole(answers: dict[int, Answer], expected: Expected, **inputs: Any) -> None:
    """By the number behind PROMPT."""
    for n, answer in answers.items():
        assert (answer.error, answer.reasons) == ("", ["length"]), f"answer {n}: {answer.error}"
        assert answer.text == expected.text(f"{PROMPT} {n}", **inputs), n
