"""The prompts of a completion: one or several, each a text or token ids."""

from __future__ import annotations

from typing import Any, cast

from client.wire import Prompt
from front.asks import CompletionAsk
from front.errors import refused

MAX_ANSWERS = 1024  # to one request: prompts times choices


def prompts_of(ask: CompletionAsk) -> list[Prompt]:
    """Raises ProblemError."""
    given = ask.prompt
    prompts = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    most = MAX_ANSWERS // ask.num_choices
    if len(prompts) > most:
        raise refused(
            "prompt", f" = {len(prompts)} prompts: must be at most {most} with n = {ask.num_choices}"
        )
    return [_prompt(prompt) for prompt in prompts]


def _prompt(prompt: Any) -> Prompt:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        return cast(list[int], prompt)
    said = ": must be a text, a list of texts, a list of token ids, or a list of such lists"
    raise refused("prompt", said, "invalid_type")
