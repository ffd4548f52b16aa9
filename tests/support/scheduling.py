"""The slot scheduler over the toy engine, turned by hand, and requests whose answers are known."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.policies import setting_of
from python_backends.nouns.request import Finish, Request, Sampling
from python_backends.scheduling.policies.fcfs import reserve_max_tokens
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.state.view import Reserve
from python_backends.settings import EngineSettings, ModelSettings, SchedulingSettings, Settings
from tests.support.toy_answers import toy_answer
from tests.support.toy_engine import TOY, ToyEngine

VOCAB = 97
RULES: dict[str, tuple[str, Reserve | None]] = {  # policy, and what is reserved; None: what the policy does
    "fcfs": ("fcfs", reserve_max_tokens),
    "fcfs that reserves nothing": ("fcfs", lambda sequence: 0),
    **{policy: (setting_of(policy), None) for policy in ("orca", "past_future", "sjf", "hrrn", "ours")},
}


def write_vocabulary(directory: Path) -> Path:
    """All that the toy engine reads of a checkpoint."""
    vocab = {f"t{i}": i for i in range(VOCAB)}
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    return directory


class Instance:
    """Slot scheduler and toy engine, turned by hand; `depth` steps are launched before the oldest is read."""

    def __init__(
        self,
        model: Path,
        depth: int = 1,
        slots: int = 4,
        blocks: int = 64,
        policy: str = "fcfs",
        row_multiple: int = 32,
        **options: Any,
    ) -> None:
        engine = EngineSettings(kind=TOY, slots=slots, kv_blocks=blocks, block_tokens=4)
        self.engine = ToyEngine(
            Settings(model=ModelSettings(str(model), max_model_tokens=120), engine=engine)
        )
        self.now_s = 0.0
        self.scheduler = SlotScheduler(
            self.engine.limits.changed(row_multiple=row_multiple),
            settings=SchedulingSettings(policy),
            clock=lambda: self.now_s,
            **options,
        )
        self.depth = depth
        self.launched: deque = deque()
        self.answers: dict[int, list[int]] = {}
        self.read: set[tuple[int, int]] = set()  # hidden states: request, tokens of its answer
        self.finishes: dict[int, Finish] = {}
        self.steps = 0

    def submit(self, request: Request, delivered: tuple[int, ...] = ()) -> None:
        self.answers[request.request_id] = list(delivered)
        self.scheduler.submit(request, np.array(delivered, np.int32))

    def turn(self) -> bool:
        plan = self.scheduler.plan()
        if plan is not None:
            self.engine.launch(plan)
            self.launched.append(plan)
        reads = bool(self.launched) and (plan is None or len(self.launched) >= self.depth)
        if reads:
            self._read()
        self.steps += 1
        return plan is not None or reads

    def _read(self) -> None:
        plan, output = self.launched.popleft(), self.engine.collect()
        states = self.scheduler.hidden_states(plan, output)
        if states is not None:
            read = list(zip(states.request_ids.tolist(), states.num_written.tolist(), strict=True))
            assert all(written == len(self.answers[number]) for number, written in read)
            self.read.update(read)
        events = self.scheduler.apply(plan, output)
        rows = zip(events.request_ids, events.indices, events.tokens, events.finishes, strict=True)
        for request_id, index, token, finish in rows:
            answer = self.answers[int(request_id)]
            assert index == len(answer), "tokens come in order, none twice"
            answer.append(int(token))
            if finish != Finish.RUNNING:
                self.finishes[int(request_id)] = Finish(int(finish))

    def run(self) -> None:
        while self.turn():
            assert self.steps < 20_000
        assert self.scheduler.is_idle
        self.scheduler.check_integrity()


def request(number: int, prompt: list[int], priority: int = 0, **sampling: Any) -> Request:
    return Request(
        number, np.array(prompt, np.int32), Sampling(**{"max_tokens": 20, **sampling}), priority=priority
    )


def answer(ask: Request) -> list[int]:
    return toy_answer(ask.prompt, ask.sampling, VOCAB)
