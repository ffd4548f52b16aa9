"""Turns chat messages into one prompt with the model's own jinja template, as transformers renders it.

Neither the template (from the checkpoint) nor the messages are trusted: the template runs in the sandbox of
`template_sandbox`, which limits its work. The length of the output is limited here. Called by the door.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jinja2 import TemplateError, nodes

from python_backends.nouns.request import RefusedError
from python_backends.text.checkpoint import CheckpointError
from python_backends.text.door.special_tokens import Guard, SpecialTokens
from python_backends.text.door.template_sandbox import begin_rendering, environment

Message = Mapping[str, str]

# a prompt has at most MAX_FRAME characters and this many for each character of its messages
OUTPUT_PER_INPUT = 4
MAX_FRAME = 1_000_000
MAX_REASON = 500  # characters of a template's error message


class ChatTemplate:
    """The model's chat template, compiled once. `render` may be called from any thread."""

    def __init__(self, source: str, named_tokens: Mapping[str, str], special: SpecialTokens) -> None:
        """Compiles `source`. Raises CheckpointError."""
        self._named_tokens = dict(named_tokens)
        self._special = special
        try:
            sandbox = environment()
            compared = sandbox.parse(source).find_all(nodes.Const)
            self._template = sandbox.from_string(source)
        except TemplateError as error:
            raise CheckpointError(f"the chat template can't be used: {error}") from error
        self._kept = special.comparable(node.value for node in compared if isinstance(node.value, str))

    def render(self, messages: Sequence[Message]) -> str:
        """Returns the prompt up to the start of the assistant's answer, with its special tokens in the secret
        spelling. Raises RefusedError.
        """
        contents = [message["content"] for message in messages]
        guard = self._special.guard(contents)
        rendered = self._rendered(messages, guard, self._kept)
        if self._kept is not None and any(map(self._kept.search, contents)):
            others = self._special.among(self._rendered(messages, guard, None))
            if others != self._special.among(rendered):
                raise RefusedError(
                    "messages: the model's chat template would make special tokens of parts of their contents"
                )
        return guard.arm(rendered)

    def _rendered(self, messages: Sequence[Message], guard: Guard, kept: re.Pattern[str] | None) -> str:
        disarmed = [{**message, "content": guard.disarm(message["content"], kept)} for message in messages]
        limit = MAX_FRAME + OUTPUT_PER_INPUT * sum(len(message["content"]) for message in disarmed)
        begin_rendering(sum(len(message["content"]) for message in messages))
        try:
            return _bounded(self._stream(disarmed), limit)
        # a template may raise anything; the client receives the reason
        except Exception as error:
            reason = self._special.readable(guard.typed(str(error)))[:MAX_REASON]
            raise RefusedError(f"messages: the model's chat template can't render them: {reason}") from error

    def _stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        return self._template.generate(
            messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._named_tokens
        )


def _bounded(pieces: Iterable[str], limit: int) -> str:
    taken, length = [], 0
    for piece in pieces:
        taken.append(piece)
        length += len(piece)
        if length > limit:
            raise TemplateError(f"it writes more than {limit} characters")
    return "".join(taken)
