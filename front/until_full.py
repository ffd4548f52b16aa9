"""Answers of interfaces whose clients ask for more tokens than the context has: they get what is left."""

from __future__ import annotations

import contextlib
from typing import cast

from client.parameters import Parameters
from front.answers import Answers, Asker, Question, answers
from front.errors import ProblemError
from front.parameters import UNTIL_THE_CONTEXT_ENDS

MOST_TOKENS = (1 << 31) - 1  # that the ensemble can be asked for


async def until_full(client: Asker, question: Question, is_streamed: bool) -> Answers:
    """As `answers` to one question. If the ensemble refuses max_tokens, which here can only be because the
    context has fewer left, it is asked for as many as there are. Raises ProblemError, also for such a refusal
    of an answer that has begun, as by a server that was started again with a shorter context.
    """
    has_begun = False
    try:
        async with contextlib.aclosing(answers(client, [question], is_streamed)) as pieces:
            async for each in pieces:
                has_begun = True
                yield each
        return
    except ProblemError as problem:
        if has_begun or problem.body["error"]["param"] != "max_tokens":
            raise
    prompt, parameters = question
    longest = cast(Parameters, {**parameters, "max_tokens": UNTIL_THE_CONTEXT_ENDS})
    async with contextlib.aclosing(answers(client, [(prompt, longest)], is_streamed)) as pieces:
        async for each in pieces:
            yield each
