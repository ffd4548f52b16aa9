"""The items of a response, one class for each type: what their events say, and the whole of them."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import Any

from front.open_responses.asks import ResponsesAsk
from front.open_responses.turns import OURS
from front.parts.events import Arguments, Begun, Event, Text, Thought
from front.parts.input import Input
from front.tools import custom_of, namespaces_of

Named = tuple[str, dict[str, Any]]  # an event's name without "response.", and its fields
Scores = list[dict[str, Any]]
PLACE = {"content_index": 0}  # of an item's one part
ENCRYPTED = "reasoning.encrypted_content"  # of `include`


class Item(ABC):
    """One item, which is open."""

    prefix: str
    left = "completed"  # its status if nothing ends it before the next one, or the answer's end

    def __init__(self) -> None:
        self.id = f"{self.prefix}_{secrets.token_hex(16)}"
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @abstractmethod
    def takes(self, each: Event) -> bool:
        """Whether it goes on with `each`."""

    def begun(self) -> list[Named]:
        """Events behind its beginning."""
        return []

    def delta(self, text: str, scores: Scores) -> list[Named]:
        self._texts.append(text)
        return self._delta(text, scores)

    @abstractmethod
    def _delta(self, text: str, scores: Scores) -> list[Named]: ...

    @abstractmethod
    def ended(self) -> list[Named]:
        """Events before its end."""

    @abstractmethod
    def whole(self, status: str) -> dict[str, Any]: ...


class Message(Item):
    """A text."""

    prefix = "msg"

    def __init__(self) -> None:
        super().__init__()
        self._scores: Scores = []

    def takes(self, each: Event) -> bool:
        return isinstance(each, Text)

    def begun(self) -> list[Named]:
        return [("content_part.added", {**PLACE, "part": self._part()})]

    def _delta(self, text: str, scores: Scores) -> list[Named]:
        self._scores += scores
        fields = {**PLACE, "delta": text, "logprobs": _without_bytes(scores)}
        return [("output_text.delta", fields)]

    def ended(self) -> list[Named]:
        done = {**PLACE, "text": self.text, "logprobs": _without_bytes(self._scores)}
        part = {**PLACE, "part": self._part()}
        return [("output_text.done", done), ("content_part.done", part)]

    def whole(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part()]
        made = {"id": self.id, "type": "message", "role": "assistant"}
        return {**made, "status": status, "content": content}

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self._scores}


class Reasoning(Item):
    """A thought."""

    prefix = "rs"

    def __init__(self, comes_back: bool) -> None:
        """`comes_back`: the client wants what it has to send back of it."""
        super().__init__()
        self._comes_back = comes_back

    def takes(self, each: Event) -> bool:
        return isinstance(each, Thought)

    def begun(self) -> list[Named]:
        return [("content_part.added", {**PLACE, "part": self._part()})]

    def _delta(self, text: str, scores: Scores) -> list[Named]:
        return [("reasoning_text.delta", {**PLACE, "delta": text})]

    def ended(self) -> list[Named]:
        part = {**PLACE, "part": self._part()}
        return [("reasoning_text.done", {**PLACE, "text": self.text}), ("content_part.done", part)]

    def whole(self, status: str) -> dict[str, Any]:
        made: dict[str, Any] = {"id": self.id, "type": "reasoning", "summary": [], "status": status}
        is_begun = status == "in_progress"
        made["content"] = [] if is_begun else [self._part()]
        if self._comes_back and not is_begun:
            made["encrypted_content"] = OURS + self.text
        return made

    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}


class FunctionCall(Item):
    """A call of a function."""

    prefix = "fc"
    kind = "function_call"
    left = "incomplete"  # the model broke it off

    def __init__(self, name: str, namespace: str | None) -> None:
        super().__init__()
        self._head = {"call_id": f"call_{secrets.token_hex(12)}", "name": name}
        if namespace is not None:
            self._head["namespace"] = namespace

    def takes(self, each: Event) -> bool:
        return isinstance(each, Arguments)

    def _delta(self, text: str, scores: Scores) -> list[Named]:
        return [("function_call_arguments.delta", {"delta": text})]

    def ended(self) -> list[Named]:
        return [("function_call_arguments.done", {"arguments": self.text, "name": self._head["name"]})]

    def whole(self, status: str) -> dict[str, Any]:
        made = {"id": self.id, "type": self.kind, **self._head}
        return {**made, "arguments": self.text, "status": status}


class CustomCall(FunctionCall):
    """A call of a custom tool: its one argument is a text."""

    prefix = "ctc"
    kind = "custom_tool_call"

    def __init__(self, name: str, namespace: str | None) -> None:
        super().__init__(name, namespace)
        self._input = Input()

    def _delta(self, text: str, scores: Scores) -> list[Named]:
        return self._told(self._input.add(text))

    def ended(self) -> list[Named]:
        told = self._told(self._input.end())
        return [*told, ("custom_tool_call_input.done", {"input": self._input.text})]

    def whole(self, status: str) -> dict[str, Any]:
        return {"id": self.id, "type": self.kind, **self._head, "input": self._input.text}

    def _told(self, text: str) -> list[Named]:
        return [("custom_tool_call_input.delta", {"delta": text})] if text else []


class Kinds:
    """Makes the items of one response."""

    def __init__(self, ask: ResponsesAsk) -> None:
        self._custom = custom_of(ask.given_tools)
        self._namespaces = namespaces_of(ask.given_tools)
        self._comes_back = ENCRYPTED in (ask.include or ())

    def item_of(self, each: Event) -> Item:
        """Returns the item that begins with `each`."""
        if isinstance(each, Thought):
            return Reasoning(self._comes_back)
        if isinstance(each, Begun):
            kind = CustomCall if each.name in self._custom else FunctionCall
            return kind(each.name, self._namespaces.get(each.name))
        return Message()


def _without_bytes(scores: Scores) -> Scores:
    """As events have them."""
    return [
        {
            "token": each["token"],
            "logprob": each["logprob"],
            "top_logprobs": [
                {"token": top["token"], "logprob": top["logprob"]} for top in each["top_logprobs"]
            ],
        }
        for each in scores
    ]
