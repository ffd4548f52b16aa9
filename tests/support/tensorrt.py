"""The TensorRT-LLM engine over its stand-in under the instance's loop, for tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from python_backends.instance.build import build
from python_backends.instance.loop import Instance
from python_backends.nouns.messages import Failed, Submit
from python_backends.nouns.request import AdapterVersion, Finish, Request, Sampling
from python_backends.settings import (
    AdapterSettings,
    EngineSettings,
    ModelSettings,
    SchedulingSettings,
    Settings,
    TensorRTLLMSettings,
)
from tests.support.instance_link import Link
from tests.support.toy_answers import toy_answer

VOCAB_SIZE = 512
MAX_MODEL_TOKENS = 256


def write_model(directory: Path, **values: Any) -> Path:
    """As much of a checkpoint as the stand-in reads."""
    config = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_MODEL_TOKENS, **values}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def make_settings(
    directory: Path, scheduling: SchedulingSettings | None = None, adapters: str = "", **values: Any
) -> Settings:
    """`values` are of the engine where it has them, else of TensorRT-LLM."""
    engine = EngineSettings(kind="tensorrt_llm", slots=3, block_tokens=4, kv_blocks=96)
    ours = {name: value for name, value in values.items() if hasattr(engine, name)}
    theirs = {name: value for name, value in values.items() if name not in ours}
    return Settings(
        model=ModelSettings(directory=str(directory), device="cuda"),
        engine=replace(engine, **ours),
        tensorrt_llm=TensorRTLLMSettings(**theirs),
        adapters=AdapterSettings(adapters),
        scheduling=scheduling or SchedulingSettings(),
    )


class TensorRTLink(Link):
    """Keeps failures and reasons as well."""

    def __init__(self, inbox: Sequence[list[Any]]) -> None:
        super().__init__(inbox)
        self.failed: dict[int, str] = {}
        self.failures: list[Failed] = []
        self.finishes: dict[int, Finish] = {}
        self.log_probs: dict[int, list[tuple[float, list[int], list[float]]]] = {}
        self.rows: list[int] = []  # tokens of each message

    def publish(self, messages: Sequence[Any]) -> None:
        super().publish(messages)
        for message in messages:
            if isinstance(message, Failed):
                self.failed[message.request_id] = message.error
                self.failures.append(message)
            elif hasattr(message, "finishes"):
                self._note(message)

    def _note(self, tokens: Any) -> None:
        self.rows.append(len(tokens.tokens))
        ends = zip(tokens.request_ids.tolist(), tokens.finishes.tolist(), strict=True)
        self.finishes |= {request_id: Finish(finish) for request_id, finish in ends if finish}
        if tokens.log_probs is None:
            return
        values = tokens.log_probs.values
        tops = values.top_ids.reshape(-1, values.num_top), values.top.reshape(-1, values.num_top)
        for row, chosen, ids, top in zip(tokens.log_probs.rows, values.chosen, *tops, strict=True):
            self.log_probs.setdefault(int(tokens.request_ids[row]), []).append(
                (float(chosen), ids.tolist(), top.tolist())
            )


class Serving:
    """An instance over the stand-in; close it."""

    def __init__(self, settings: Settings, inbox: Sequence[list[Any]] = ()) -> None:
        self.scheduler, self.engine = build(settings)
        self.link = TensorRTLink(inbox)
        self.instance = Instance(self.scheduler, self.engine, self.link, lambda _: None, settings.steps_ahead)

    @property
    def llm(self) -> Any:
        return self.engine._llm  # type: ignore[attr-defined]

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def run(self, until: Callable[[], bool] | None = None, timeout_s: float = 10) -> dict[int, list[int]]:
        """Turns of the loop until then, or until there is nothing to do. Raises AssertionError."""
        end_s = time.monotonic() + timeout_s
        while not (until() if until else self.scheduler.is_idle and not self.link.inbox):
            assert time.monotonic() < end_s, "did not come true in time"
            self.instance.turn()
            self.scheduler.check_integrity()
        return self.link.answers


def submit(
    number: int, length: int, delivered: Sequence[int] = (), last: int = 0, adapter: str = "", **sampling: Any
) -> Submit:
    """A request whose prompt is number, number + 1, …; `last` is its last token."""
    prompt = np.arange(number, number + length, dtype=np.int32)
    prompt[-1] = last or prompt[-1]
    return Submit(
        Request(number, prompt, Sampling(**sampling), adapter=AdapterVersion(adapter)),
        np.array(delivered, np.int32),
        0,
    )


def answer_of(asked: Submit) -> list[int]:
    """What an undisturbed run gives."""
    return toy_answer(asked.request.prompt, asked.request.sampling, VOCAB_SIZE)
