"""The instance's loop over the TensorRT-LLM engine, without a server: requests in, and what came of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from python_backends.instance.build import build
from python_backends.instance.loop import Instance
from python_backends.nouns.messages import Cancel, Failed, Predicted, Submit
from python_backends.nouns.request import AdapterVersion, Finish, LengthPrediction, Request, Sampling
from python_backends.nouns.step import Tokens
from python_backends.settings import Settings


class TooLateError(AssertionError):
    """What should happen did not happen in time."""


@dataclass
class Asked:
    """One request, and what has come of it so far."""

    number: int
    tokens: list[int] = field(default_factory=list)
    finish: Finish = Finish.RUNNING
    error: str = ""
    chosen: list[float] = field(default_factory=list)  # log-probabilities
    best: list[float] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return self.finish != Finish.RUNNING or bool(self.error)


class Serving:
    """Use it as a context; it is the link of its own instance."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.scheduler, self.engine = build(settings)
        self.instance = Instance(self.scheduler, self.engine, self, lambda _: None)
        self.requests: dict[int, Asked] = {}
        self.rows: list[int] = []  # tokens of each message
        self.most_running = 0
        self._inbox: list[Any] = []

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    # --- the link

    def receive(self, timeout_s: float) -> list[Any]:
        inbox, self._inbox = self._inbox, []
        return inbox

    def publish(self, messages: Sequence[Any]) -> None:
        for message in messages:
            if isinstance(message, Failed):
                self.requests[message.request_id].error = message.error
            elif isinstance(message, Tokens):
                self._note(message)

    def _note(self, tokens: Tokens) -> None:
        self.rows.append(len(tokens.tokens))
        for number, token, finish in zip(tokens.request_ids, tokens.tokens, tokens.finishes, strict=True):
            asked = self.requests[int(number)]
            asked.tokens.append(int(token))
            asked.finish = Finish(finish)
        if tokens.log_probs is not None:
            values = tokens.log_probs.values
            tops = values.top.reshape(len(values.chosen), -1)
            for row, chosen, top in zip(tokens.log_probs.rows, values.chosen, tops, strict=True):
                asked = self.requests[int(tokens.request_ids[row])]
                asked.chosen.append(float(chosen))
                asked.best.append(float(top[0]) if len(top) else float("nan"))

    # --- asking

    def ask(
        self,
        prompt: Sequence[int],
        delivered: Sequence[int] = (),
        adapter: str = "",
        likely: int = 0,
        **sampling: Any,
    ) -> Asked:
        """`likely`: a predicted length that comes along."""
        asked = Asked(len(self.requests) + 1)
        self.requests[asked.number] = asked
        request = Request(
            asked.number, np.array(prompt, np.int32), Sampling(**sampling), adapter=AdapterVersion(adapter)
        )
        self._inbox.append(Submit(request, np.array(delivered, np.int32), 0))
        if likely:
            self._inbox.append(
                Predicted(asked.number, LengthPrediction(likely, np.full(6, likely, np.float32)))
            )
        return asked

    def answer(self, prompt: Sequence[int], **asked: Any) -> Asked:
        """Of one request, alone."""
        one = self.ask(prompt, **asked)
        self.run()
        return one

    def cancel(self, asked: Asked) -> None:
        self._inbox.append(Cancel(asked.number))

    def run(self, until: Callable[[], bool] | None = None, timeout_s: float = 120) -> float:
        """Turns until then, or until there is nothing to do; how long it took.
        Raises TooLateError, and what the engine raises.
        """
        started_s = time.monotonic()
        while self._inbox or not (until() if until else self.scheduler.is_idle):
            self.instance.turn()
            self.most_running = max(self.most_running, self.scheduler.num_running)
            if time.monotonic() - started_s > timeout_s:
                raise TooLateError(f"did not happen within {timeout_s:g} s")
        return time.monotonic() - started_s
