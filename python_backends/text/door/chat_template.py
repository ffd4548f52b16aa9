"""Turns chat messages into one prompt with the model's own jinja template, as transformers renders it.

Neither the template (from the checkpoint) nor the messages are trusted: the template runs in the sandbox of
`template_sandbox`, which limits its work. The length of the output is limited here. Called by the door.

Contents are rendered with other characters in place of some (`special_tokens`). A template may treat those in
another way: print them as escapes, count them, cut a break in two. So contents that were changed are rendered
as typed, too, and the request is refused if the texts differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes

from python_backends.checkpoint.source import CheckpointError
from python_backends.nouns.request import RefusedError
from python_backends.text.checkpoint import Checkpoint
from python_backends.text.door.chat import (
    NONE,
    Extras,
    Message,
    changed,
    changed_message,
    texts_of,
    texts_of_message,
)
from python_backends.text.door.special_tokens import Guard, SpecialTokens
from python_backends.text.door.template_probe import CALL, TEXT, TemplateProbe, searched
from python_backends.text.door.template_sandbox import begin_rendering, environment

Given = tuple[Sequence[Message], Extras]

# a prompt has at most MAX_FRAME characters and this many for each character of its messages
OUTPUT_PER_INPUT = 4
MAX_FRAME = 1_000_000
TURN = "qzx"  # a content that no template writes
MAX_REASON = 500  # characters of a template's error message


class ChatTemplate:
    """The model's chat template, compiled once. `render` may be called from any thread."""

    def __init__(self, source: str, named_tokens: Mapping[str, str], special: SpecialTokens) -> None:
        """Compiles `source`. Raises CheckpointError."""
        self._named_tokens = dict(named_tokens)
        self.probe = TemplateProbe(self._written)
        self._special = special
        try:
            sandbox = environment()
            parsed = sandbox.parse(source)
            compared = list(parsed.find_all(nodes.Const))
            self._searched = frozenset(searched(parsed))
            self._template = sandbox.from_string(source)
        # TemplateError, and for what is nested too deeply RecursionError or SyntaxError
        except Exception as error:
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise CheckpointError(f"the chat template can't be used: {kind}{error}") from error
        self._kept = special.comparable(node.value for node in compared if isinstance(node.value, str))

    def markers(self, tokens: Iterable[str]) -> frozenset[str]:
        """Returns those of the tokens with which the template marks messages. Not those that it looks for in
        contents, such as "</think>": an assistant's answer has them rightly.
        """
        written = self.probe.written(tokens)
        return frozenset(token for token in written if not any(token in text for text in self._searched))

    def prompt(self, messages: Sequence[Message], extras: Extras = NONE) -> str:
        """Like `render`, but refuses what the template leaves out. Raises RefusedError."""
        rendered = self.render(messages, extras)
        self._refuse_what_is_left_out(messages, bool(extras.tools))
        if extras.tools and not self.probe.writes_tools:
            raise RefusedError("tools: the model's chat template leaves them out of the prompt")
        return rendered

    def render(self, messages: Sequence[Message], extras: Extras = NONE) -> str:
        """Returns the prompt up to the start of the assistant's answer, with its special tokens in the secret
        spelling. Raises RefusedError.
        """
        has_tools = bool(extras.tools)
        given = ([self._as_written(message, has_tools) for message in messages], extras)
        texts = [*(text for each in given[0] for text in texts_of_message(each)), *texts_of(extras.tools)]
        guard = self._special.guard(texts)
        now = datetime.now()  # the same for all that are compared
        disarmed = _changed(given, lambda text: guard.disarm(text, self._kept))
        rendered = self._rendered(disarmed, guard, now)
        if self._kept is not None and any(map(self._kept.search, texts)):
            others = self._rendered(_changed(given, guard.disarm), guard, now)
            if self._special.among(others) != self._special.among(rendered):
                raise RefusedError(
                    "messages: the model's chat template would make special tokens of parts of their contents"
                )
        if disarmed != given and guard.typed(rendered) != self._rendered(given, guard, now):
            raise RefusedError(
                "messages: the model's chat template counts, cuts or escapes characters of their contents"
                " that special tokens have as well; this is not supported"
            )
        return guard.arm(rendered)

    def ending(self, messages: Sequence[Message], extras: Extras = NONE) -> str:
        """Returns what the template writes behind a user's message that follows `messages`, up to the answer;
        empty if it can't.
        """
        try:
            written = self._written([*messages, {"role": "user", "content": TURN}], extras)
        except Exception:  # a template may raise anything; the ensemble says what
            return ""
        return written.rpartition(TURN)[2]

    def _refuse_what_is_left_out(self, messages: Sequence[Message], has_tools: bool) -> None:
        for i, message in enumerate(messages):
            if not message.get("tool_calls"):
                continue
            if not self.probe.arguments(has_tools):
                raise RefusedError(
                    f"messages[{i}].tool_calls: the model's chat template leaves them out of the prompt"
                )
            if message["content"].strip() and not self.probe.writes_texts_of_calls(has_tools):
                raise RefusedError(
                    f"messages[{i}].content: the model's chat template leaves it out of the prompt, because"
                    " there are tool_calls"
                )
        left_out = self.probe.left_out(
            tuple(CALL if message.get("tool_calls") else message["role"] for message in messages), has_tools
        )
        for i in sorted(left_out):
            if messages[i]["content"].strip():
                known = self.probe.known
                here = " at this place" if messages[i]["role"] in known else ""
                raise RefusedError(
                    f"messages[{i}].role = {messages[i]['role']!r}: the model's chat template leaves such a"
                    f" message out of the prompt{here}; it writes {', '.join(known) or 'no messages of text'}"
                )

    def _as_written(self, message: Message, has_tools: bool) -> Message:
        """With a call's arguments as the template takes them."""
        if not message.get("tool_calls") or self.probe.arguments(has_tools) != TEXT:
            return message
        calls = [
            {**call, "function": {**call["function"], "arguments": _json_of(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
        return {**message, "tool_calls": calls}

    def _rendered(self, given: Given, guard: Guard, now: datetime) -> str:
        try:
            return self._written(*given, now)
        # a template may raise anything; the client receives the reason
        except Exception as error:
            reason = self._special.readable(guard.typed(str(error)))[:MAX_REASON]
            raise RefusedError(f"messages: the model's chat template can't render them: {reason}") from error

    def _written(
        self, messages: Sequence[Message], extras: Extras = NONE, now: datetime | None = None
    ) -> str:
        """Returns what the template makes of a chat, up to the end of a content that is to be continued."""
        last = messages[-1]["content"] if extras.continues else ""
        if extras.continues:
            messages = [*messages[:-1], {**messages[-1], "content": f"{last}{TURN} "}]
        num_chars = sum(len(text) for message in messages for text in texts_of_message(message))
        num_chars += sum(map(len, texts_of(extras.tools)))
        begin_rendering(num_chars, now or datetime.now())
        pieces = self._template.generate(
            **extras.named,
            messages=list(messages),
            tools=list(extras.tools) or None,
            documents=None,
            add_generation_prompt=not extras.continues,
            **self._named_tokens,
        )
        written = _bounded(pieces, MAX_FRAME + OUTPUT_PER_INPUT * num_chars)
        return _open_ended(written, last) if extras.continues else written


def _changed(given: Given, change: Callable[[str], str]) -> Given:
    messages, extras = given
    tools = tuple(changed(tool, change) for tool in extras.tools)
    return [changed_message(message, change) for message in messages], replace(extras, tools=tools)


def _json_of(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _open_ended(written: str, last: str) -> str:
    """Returns the prompt up to the end of its last message's content, which is `last`. After that stand TURN,
    so that the end is found whatever it is, and a space, which a template that trims contents has cut.
    """
    prompt, found, after = written.rpartition(TURN)
    if not last or not found:
        raise TemplateError("it does not end with the content of the last message, which is to be continued")
    return prompt if after.startswith(" ") or not last.strip() else prompt.rstrip()


def _bounded(pieces: Iterable[str], limit: int) -> str:
    taken, length = [], 0
    for piece in pieces:
        taken.append(piece)
        length += len(piece)
        if length > limit:
            raise TemplateError(f"it writes more than {limit} characters")
    return "".join(taken)


def template_of(checkpoint: Checkpoint) -> tuple[SpecialTokens, ChatTemplate | None]:
    """Returns the special tokens and the template of a checkpoint. The template's markers count as special,
    whatever the tokenizer says: a content must not have them. Single characters and white space are none,
    though Gemma's tokenizers have tokens of white space, which their templates write. Raises CheckpointError.
    """
    texts, source, names = checkpoint.special_tokens, checkpoint.chat_template, checkpoint.named_tokens
    special = SpecialTokens(checkpoint.tokenizer, texts)
    if source is None:
        return special, None
    try:
        template = ChatTemplate(source, names, special)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.template_file}: {error}") from error
    added = [token.content for token in checkpoint.tokenizer.get_added_tokens_decoder().values()]
    markers = template.markers(token for token in added if len(token.strip()) > 1) - texts
    if markers:
        special = SpecialTokens(checkpoint.tokenizer, texts | markers)
        template = ChatTemplate(source, names, special)
    return special, template
