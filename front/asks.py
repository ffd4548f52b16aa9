"""The fields of a request that are taken, with their types. What else may come is in `fields`."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

MAX_CHOICES = 128  # answers to one request


class StreamOptions(Struct):
    include_usage: bool | None = None


class Part(Struct):
    """Of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @property
    def said(self) -> str | None:
        return self.text if self.type == "text" else self.refusal


class Message(Struct):
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same by its other name


class Ask(Struct, kw_only=True):
    """What chats and completions have in common. None: absent, or null."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    priority: int | None = None

    @property
    def num_choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatAsk(Ask, kw_only=True):
    messages: list[Message]
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionAsk(Ask, kw_only=True):
    prompt: Any
    echo: bool | None = None
    logprobs: int | None = None  # the number of most probable tokens


class TokenizeAsk(Struct):
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None


class DetokenizeAsk(Struct):
    tokens: list[int]
