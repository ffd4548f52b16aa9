"""What of a request is the instruction, and what the user's input: the two things that the length of its
answer is predicted from.

    input `instruction`   the instruction itself; the input is the text, or the last user message, after it if
    it begins with it messages              the system message, and the last user message; without a system
    message the latter is taken like a text text_input            up to the first colon or line break, and the
    rest; without either all of it is input

Both are cut to what a predictor reads. Called by the door.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Encoding

from python_backends.text.door.chat_template import Message

MAX_INSTRUCTION_CHARS = 200  # more before the first colon or line break is no instruction
MAX_READ_CHARS = 1024  # of either; an encoder reads less

_END = re.compile(r"[:\n]")


def of_text(text: str, instruction: str | None = None) -> tuple[str, str]:
    """(instruction, input) of a plain prompt."""
    if instruction is not None:
        return instruction.strip(), text.removeprefix(instruction).lstrip(": \n")
    end = _END.search(text, 0, MAX_INSTRUCTION_CHARS)
    return (text[: end.start()].strip(), text[end.end() :].lstrip()) if end else ("", text)


def of_messages(messages: Sequence[Message], instruction: str | None = None) -> tuple[str, str]:
    """(instruction, input) of a conversation."""
    asked = _last(messages, ("user",))
    system = _last(messages, ("system", "developer"))
    if instruction is None and system:
        return system.strip(), asked
    return of_text(asked, instruction)


def num_tokens_of(given: str, prompt: str, encoding: Encoding) -> int:
    """Of the tokens of `prompt`, those of the input `given`, which is in it
    unchanged or is counted by its share of characters.
    """
    text = given.strip()
    # any place will do. `rfind` takes quadratic time where nearly the same text is in it again and again
    begin = prompt.find(text)
    if not text or begin < 0:
        return round(len(encoding) * len(text) / max(1, len(prompt)))
    first, last = encoding.char_to_token(begin), encoding.char_to_token(begin + len(text) - 1)
    return (len(encoding) - 1 if last is None else last) - (first or 0) + 1


def _last(messages: Sequence[Message], roles: tuple[str, ...]) -> str:
    return next((message["content"] for message in reversed(messages) if message["role"] in roles), "")
