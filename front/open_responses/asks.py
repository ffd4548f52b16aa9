"""The fields of a request that are taken, and those that are refused by name. All others are ignored: clients
send new ones with every version.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from front.asks import Ask
from front.errors import refused
from front.guided.choice import NONE, Choice, of_openai

# the conversation would be another one without these
MEMORY = ("previous_response_id", "conversation", "prompt")
LOG_PROBS = "message.output_text.logprobs"  # of `include`


class ResponsesAsk(Struct, kw_only=True):
    """None: absent, or null."""

    model: str | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    priority: int | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    background: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None

    @property
    def plain(self) -> Ask:
        return Ask(
            model=self.model,
            stream=self.stream,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            priority=self.priority,
        )

    @property
    def given_tools(self) -> list[dict[str, Any]]:
        """Those of the request, and those that its items add."""
        if self.choice.mode == NONE:
            return []
        items = self.input if isinstance(self.input, list) else []
        added = [item.get("tools") for item in items if item.get("type") == "additional_tools"]
        return [*(self.tools or ()), *(tool for each in added if isinstance(each, list) for tool in each)]

    @property
    def choice(self) -> Choice:
        """Raises ProblemError."""
        return of_openai(self.tool_choice)

    @property
    def wants_log_probs(self) -> bool:
        return LOG_PROBS in (self.include or ()) or bool(self.top_logprobs)


def check(ask: ResponsesAsk) -> None:
    """Refuses what would change the answer and is not there. Raises ProblemError."""
    for name in MEMORY:
        if getattr(ask, name) is not None:
            said = ": this server keeps no responses; send the whole conversation as input"
            raise refused(name, said, "unsupported_value")
    if ask.background:
        said = " = true: this server keeps no responses, so none can be fetched later"
        raise refused("background", said, "unsupported_value")
