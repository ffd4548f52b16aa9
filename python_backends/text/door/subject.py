"""Divides a request into instruction and the user's input, from which the length of the answer is predicted.

    the request has    instruction                             input
    `instruction`      that field                              the text or the last user message, without the
                                                               instruction at its start
    messages           the last system message; if there is    the last user message
                       none, as for text_input
    text_input,        up to the first colon or line break     the text after it; all text if there is neither
    input_ids (their text)

The door cuts both to MAX_READ_CHARS. Called by the door.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Encoding

from python_backends.text.door.chat import Message

MAX_INSTRUCTION_CHARS = 200  # a longer text before the first colon or line break is not an instruction
MAX_READ_CHARS = 1024  # of each; an encoder reads less

_END = re.compile(r"[:\n]")


def of_text(text: str, instruction: str | None = None) -> tuple[str, str]:
    """Returns (instruction, input) of a plain prompt."""
    if instruction is not None:
        return instruction.strip(), text.removeprefix(instruction).lstrip(": \n")
    end = _END.search(text, 0, MAX_INSTRUCTION_CHARS)
    return (text[: end.start()].strip(), text[end.end() :].lstrip()) if end else ("", text)


def of_messages(messages: Sequence[Message], instruction: str | None = None) -> tuple[str, str]:
    """Returns (instruction, input) of a conversation."""
    asked = _last(messages, ("user",))
    system = _last(messages, ("system", "developer"))
    if instruction is None and system:
        return system.strip(), asked
    return of_text(asked, instruction)


def num_tokens_of(given: str, prompt: str, num_tokens: int, encoding: Encoding | None) -> int:
    """Returns how many of the tokens of `prompt` are the input `given`. Without the encoding, or if `prompt`
    doesn't contain it unchanged, they are estimated from its share of the characters.
    """
    text = given.strip()
    # any occurrence will do; not `rfind`, whose time is quadratic if the prompt repeats nearly the same text
    begin = prompt.find(text)
    if not text or begin < 0 or encoding is None:
        return round(num_tokens * len(text) / max(1, len(prompt)))
    first, last = encoding.char_to_token(begin), encoding.char_to_token(begin + len(text) - 1)
    return (len(encoding) - 1 if last is None else last) - (first or 0) + 1


def _last(messages: Sequence[Message], roles: tuple[str, ...]) -> str:
    return next((message["content"] for message in reversed(messages) if message["role"] in roles), "")
