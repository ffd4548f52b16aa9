"""Training data: a JSONL file → token ids, and which of them are learned. Every text is encoded as the server
encodes it.

* {"messages": [{"role", "content", "weight"?}]}: every assistant turn of weight 1 (the default) is an example
  of its own: the prompt that a chat over /v1 would get for the turns before it, then the turn and an end
  token. Where the prompt ends inside a thought, the turn begins there.
* {"prompt": text, "completion": text}: the completion and an end token are learned.
* {"text": text}: all is learned, and an end token.

A mistake is a DatasetError that names the line, the field and the limit. Called by the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids, RefusedError
from python_backends.nouns.training import NO_LABEL
from python_backends.text.door.chat import Message
from python_backends.text.door.door import Door
from python_backends.text.door.fitting import fitted
from python_backends.text.door.thoughts import THOUGHTS, open_thought
from python_backends.text.door.turns import SAME_ROLE, Turn
from python_backends.text.door.values import unicode

# of a line, for each token of the context: far more than text takes, so that what can only be too long is
# refused before it is encoded, which takes two seconds a megabyte
MOST_BYTES_A_TOKEN = 64
ROLES = ("system", "developer", "user", "assistant", "tool")
KINDS = ({"messages"}, {"prompt", "completion"}, {"text"})


class DatasetError(ValueError):
    """The data can't be used. The message names the line."""


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    ids: Ids  # [tokens]
    learned: NDArray[np.bool_]  # [tokens] the model learns to write this token

    @property
    def num_learned(self) -> int:
        """Tokens that are a label: the first token of a sequence can't be one."""
        return int(np.count_nonzero(self.learned[1:]))

    @property
    def labels(self) -> Ids:
        """[tokens] a token's label is the next token of the same sequence; the last token has none."""
        learned = np.where(self.learned[1:], self.ids[1:], NO_LABEL)
        return np.append(learned, NO_LABEL).astype(np.int32)

    @property
    def weights(self) -> None:
        """Each label counts alike."""
        return None

    @property
    def drawn_log_probs(self) -> None:
        """The loss is cross entropy."""
        return None


def read_examples(lines: Iterable[str | bytes], door: Door) -> list[Example]:
    """All examples of a JSONL file; empty lines are passed over. Raises DatasetError."""
    reader = _Reader(door)
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found += reader.examples(line)
            except (RefusedError, DatasetError) as error:
                raise DatasetError(f"line {number}: {error}") from error
    if not found:
        raise DatasetError("the file has no example: at least one line with something to learn is needed")
    return found


class _Reader:
    def __init__(self, door: Door) -> None:
        self._door = door
        self._end = _end_id(door)
        self._readers: tuple[Callable[[dict[str, Any]], Iterator[Example]], ...] = (
            self._of_chat,
            self._of_completion,
            self._of_text,
        )

    def examples(self, line: str | bytes) -> list[Example]:
        most = MOST_BYTES_A_TOKEN * self._door.max_model_tokens
        if len(line) > most:
            raise DatasetError(
                f"{len(line)} bytes: must be at most {most}, {MOST_BYTES_A_TOKEN} for each of the"
                f" {self._door.max_model_tokens} tokens of the model's context"
            )
        values = _object(line)
        for fields, reader in zip(KINDS, self._readers, strict=True):
            if values.keys() == fields:
                return [self._checked(example) for example in reader(values)]
        given = ", ".join(sorted(values)) or "none"
        raise DatasetError(f"fields {given}: must be messages, or prompt and completion, or text")

    def _of_chat(self, values: dict[str, Any]) -> Iterator[Example]:
        messages = _messages(values["messages"])
        template = self._door.template
        if template is None:
            raise DatasetError("messages: this model has no chat template; use prompt and completion")
        learned = [index for index, (message, weight) in enumerate(messages) if weight]
        if not learned:
            raise DatasetError("messages: no assistant turn of weight 1, so there is nothing to learn")
        turns = [turn for turn, _ in messages]
        for index in learned:
            asked = fitted(turns[:index], template, has_tools=False)
            prompt, content = template.prompt(asked), turns[index].content
            system = [message for message in asked[:1] if message["role"] == "system"]
            closes = open_thought(THOUGHTS, template.ending(system))
            if closes and closes not in content:
                answer = self._without_thought(f"messages[{index}]", prompt, asked, content, closes)
            else:
                answer = self._answer(prompt, asked, content)
            yield self._answered(self._ids(prompt), answer)

    def _without_thought(
        self, name: str, prompt: str, asked: list[Message], content: str, closes: str
    ) -> Ids:
        """The prompt leaves a thought open, which the content does not close: as the template closes it."""
        if not (closed := self._rendered(prompt, asked, content, closes)):
            raise DatasetError(
                f"{name}.content: the model's chat template begins each answer inside a thought, and does not"
                f" say how an answer without one is written: put a thought and {closes} before the answer"
            )
        return self._door.encoder.continued(closed)

    def _answer(self, prompt: str, asked: list[Message], content: str) -> Ids:
        """`prompt`: of the messages `asked`. Llama 2's tokenizer and its like put a space before each text;
        whether the answer has one depends on what the template writes before it.
        """
        if self._door.encoder.puts_space and content.strip():
            before, both = self._ids(prompt), self._ids(prompt + self._rendered(prompt, asked, content))
            if len(both) > len(before) and np.array_equal(both[: len(before)], before):
                return both[len(before) :]
        return self._ids(content)

    def _rendered(self, prompt: str, asked: list[Message], content: str, closes: str = "") -> str:
        """The content of the answer, and before it what the template puts between it and the prompt: white
        space, or what ends with `closes` and white space. Empty where it puts something else there.
        """
        assert self._door.template is not None
        try:
            rendered = self._door.template.render([*asked, {"role": "assistant", "content": content}])
        except RefusedError:  # it takes no conversation that ends with an answer
            return ""
        if not rendered.startswith(prompt) or (closed := rendered.find(closes, len(prompt))) < 0:
            return ""
        closed += len(closes)
        for each in (content, content.strip()):
            at = rendered.find(each, closed)
            if at >= 0 and not rendered[closed:at].strip():
                return rendered[len(prompt) : at] + each
        return ""

    def _of_completion(self, values: dict[str, Any]) -> Iterator[Example]:
        prompt = self._door.encoder.framed(self._ids(_text(values, "prompt")))
        yield self._answered(prompt, self._door.encoder.continued(_text(values, "completion")))

    def _of_text(self, values: dict[str, Any]) -> Iterator[Example]:
        ids = np.append(self._door.encoder.framed(self._ids(_text(values, "text"))), self._end)
        yield Example(ids.astype(np.int32), np.ones(len(ids), np.bool_))

    def _answered(self, prompt: Ids, answer: Ids) -> Example:
        if not len(prompt):
            raise DatasetError("prompt = 0 tokens: must have at least 1")
        ids = np.concatenate([prompt, answer, [self._end]]).astype(np.int32)
        return Example(ids, np.arange(len(ids)) >= len(prompt))

    def _ids(self, text: str) -> Ids:
        return self._door.encoder.encode(text)

    def _checked(self, example: Example) -> Example:
        count, most = len(example.ids), self._door.max_model_tokens
        if count > most:
            raise DatasetError(f"{count} tokens: must be at most {most}, the model's context")
        if example.num_learned == 0:
            raise DatasetError("no token can be learned: a text needs at least one token before the end")
        return example


def _object(line: str | bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except UnicodeDecodeError as error:
        raise DatasetError(f"no UTF-8: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"no JSON: {error}") from error
    if not isinstance(values, dict):
        raise DatasetError(f"a JSON {type(values).__name__}: must be an object")
    return values


def _text(values: dict[str, Any], name: str) -> str:
    if not isinstance(values[name], str):
        raise DatasetError(f"{name} = {values[name]!r}: must be a string")
    return unicode(name, values[name])


def _messages(value: Any) -> list[tuple[Turn, bool]]:
    """Each turn and whether it is learned."""
    if not isinstance(value, list) or not value:
        raise DatasetError("messages: must be a list of at least one message")
    return [_message(index, message) for index, message in enumerate(value)]


def _message(index: int, message: Any) -> tuple[Turn, bool]:
    name = f"messages[{index}]"
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys() <= {
        "role",
        "content",
        "weight",
    }:
        raise DatasetError(f"{name}: must have role and content, and may have weight")
    role, content, weight = message["role"], message["content"], message.get("weight")
    if role not in ROLES:
        raise DatasetError(f"{name}.role = {role!r}: must be one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise DatasetError(f"{name}.content = {content!r}: must be a string")
    if weight not in (None, 0, 1):
        raise DatasetError(f"{name}.weight = {weight!r}: must be 0 or 1")
    if weight is not None and role != "assistant":
        raise DatasetError(f"{name}.weight: only an assistant's turn may have one")
    if index == 0 and role == "assistant":
        raise DatasetError(f"{name}: an answer needs a turn before it")
    turn = Turn(str(SAME_ROLE.get(role, role)), unicode(f"{name}.content", content))
    return turn, role == "assistant" and weight != 0


def _end_id(door: Door) -> int:
    """The end token that the chat template writes after an answer; where it writes none, the checkpoint's
    first.
    """
    if not door.eos_ids:
        raise DatasetError("the checkpoint names no end token, so that an answer could not learn to end")
    if door.template is not None:
        turns = [("user", "a"), ("assistant", "b"), ("user", "c")]
        messages = [{"role": role, "content": content} for role, content in turns]
        before, after = (_ids_of(door, messages[:count]) for count in (1, 3))
        ends = [token for token in after[len(before) :] if token in door.eos_ids]
        if ends:
            return ends[0]
    return door.eos_ids[0]


def _ids_of(door: Door, messages: list[dict[str, str]]) -> list[int]:
    """No ids where the template takes no such conversation."""
    assert door.template is not None
    try:
        return list(door.encoder.encode(door.template.render(messages)).tolist())
    except RefusedError:
        return []
