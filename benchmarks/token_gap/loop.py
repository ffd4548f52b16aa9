"""The loops that `token_gap` measures: the instance's own with its settings, the work on texts, and the
replay of its plans.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.models import make_model
from benchmarks.common.recorded_engine import RecordedEngine
from benchmarks.common.resending_scheduler import ResendingScheduler
from benchmarks.triton_cost import make_tokenizer, sources
from python_backends.engine.protocol import Engine
from python_backends.instance.build import build
from python_backends.instance.loop import Instance
from python_backends.nouns.request import Feedback, Request
from python_backends.nouns.step import Started, StepOutput, StepPlan, Tokens
from python_backends.settings import (
    EngineSettings,
    ModelSettings,
    Settings,
    StreamSettings,
)
from python_backends.streams.table import StreamTable
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.detokenize.detokenizer import Detokenizer, context_tokens
from python_backends.text.door.door import open_door
from python_backends.watching.metrics import Metrics
from python_backends.wires.sessions import InstanceEnd, InstanceReady, SchedulerEnd
from tests.support.toy_engine import TOY

MODES = ("inline", "processes", "slots", "async")
TOKEN_BUDGET = 256
BLOCK_TOKENS = 32
BLOCKS_A_SLOT = 12
PROMPT_CHARACTERS = 120
WARM_UP_STEPS = 20  # not counted: kernels are compiled for new shapes


class Texts:
    """The work of tokenizer, scheduler model and detokenizer, without Triton. Keeps more requests open than
    there are slots.
    """

    def __init__(self, directory: Path, num_steps: int) -> None:
        checkpoint, limits = read_checkpoint(directory), Settings().limits
        self._door = open_door(checkpoint, limits, max_model_tokens=BLOCKS_A_SLOT * BLOCK_TOKENS)
        self._detokenizer = Detokenizer(checkpoint)
        settings = StreamSettings(max_open=1 << 20, max_queued_tokens=1 << 40)
        self._table = StreamTable(settings, time.monotonic_ns, context_tokens, Metrics())
        self._table.instance_ready(0)
        self._random = random.Random(1)
        self._source = "".join(path.read_text() for path in sources()[:10])
        self._num_steps = num_steps

    def ask(self, open_requests: int) -> None:
        """Makes new requests until `open_requests` are open."""
        for _ in range(open_requests - len(self._table)):
            request = self._door.answer(self._fields())
            assert isinstance(request, Request)
            assert not self._table.accept(request, None)

    def take(self, messages: Sequence[Any]) -> None:
        for message in messages:
            if isinstance(message, Tokens):
                self._table.tokens(message)
            elif isinstance(message, Started):
                self._table.started(message)

    def flush(self) -> list[Any]:
        """Detokenizes tokens that are due. Returns the messages to the instance."""
        for outgoing in self._table.due():
            window = outgoing.window
            assert window is not None
            piece = self._detokenizer.piece(window)
            self._table.feedback(
                Feedback(
                    window.request_id, window.start + len(window.tokens), piece.stopped_at, answered=True
                )
            )
        return self._table.outbox().get(0, [])

    def _fields(self) -> dict[str, Any]:
        begin = self._random.randrange(len(self._source) - PROMPT_CHARACTERS)
        length = self._random.randint(self._num_steps // 2, self._num_steps)
        return {
            "text_input": self._source[begin : begin + PROMPT_CHARACTERS],
            "max_tokens": length,
            "stream": True,
        }


class InlineLink:
    """A link that handles texts in the loop's own thread."""

    def __init__(self, texts: Texts, open_requests: int) -> None:
        self._texts = texts
        self._open_requests = open_requests

    def receive(self, timeout_s: float) -> list[Any]:
        self._texts.ask(self._open_requests)
        return self._texts.flush()

    def publish(self, messages: Sequence[Any]) -> None:
        self._texts.take(messages)

    def close(self) -> None: ...


class ProcessLink(InstanceEnd):
    """A link to another process that handles texts, through the instance's wire."""

    def __init__(self, run_directory: Path, engine: Engine, texts: tuple[Path, int, int]) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_texts_process, args=(run_directory, *texts), daemon=True)
        self._process.start()
        super().__init__(run_directory, "instance-0", engine.limits)

    def close(self) -> None:
        self._process.terminate()
        self._process.join()
        super().close()


def _texts_process(run_directory: Path, model: Path, num_steps: int, open_requests: int) -> None:
    link, texts = SchedulerEnd(run_directory, dead_after_s=600), Texts(model, num_steps)
    while not any(isinstance(news, InstanceReady) for news in link.receive(1.0)):
        pass
    while True:
        texts.ask(open_requests)
        link.send(0, texts.flush())
        texts.take(link.receive(0.02))


@dataclass(slots=True)
class Recorded(RecordedEngine):
    """Also records when each output was there."""

    collected_s: list[float] = field(default_factory=list)
    tok_s: float = 0.0
    replayed_tok_s: float = 0.0

    def collect(self) -> StepOutput:
        output = RecordedEngine.collect(self)
        self.collected_s.append(time.monotonic())
        return output

    def times(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the gap before each counted step, and its busy seconds."""
        counted = self.outputs[WARM_UP_STEPS:]
        return np.array([output.gap_s for output in counted]), np.array([output.busy_s for output in counted])


def prepare(directory: Path) -> None:
    """Makes a model of shape S with random weights, and a tokenizer of its size."""
    make_model("S", "bfloat16", directory)
    make_tokenizer(directory)


def settings_of(directory: Path, engine: str, threads: int, slots: int) -> Settings:
    model = ModelSettings(
        directory=str(directory), dtype="bfloat16", max_model_tokens=BLOCKS_A_SLOT * BLOCK_TOKENS
    )
    kind, options = (TOY, "step_ms=5") if engine == "toy" else (engine, "")
    chosen = EngineSettings(
        kind=kind,
        options=options,
        threads=threads,
        slots=slots,
        block_tokens=BLOCK_TOKENS,
        token_budget=TOKEN_BUDGET,
        kv_blocks=slots * BLOCKS_A_SLOT,
    )
    return Settings(model=model, engine=chosen)


def run(directory: Path, engine_name: str, threads: int, mode: str, slots: int, num_steps: int) -> Recorded:
    """Runs `num_steps` counted steps of the loop while requests wait, and then the same plans without the
    loop.
    """
    num_steps += WARM_UP_STEPS
    settings, ahead = settings_of(directory, engine_name, threads, slots), int(mode == "async")
    scheduler, engine = build(settings)
    if mode in ("inline", "processes"):
        scheduler = ResendingScheduler(scheduler.limits, TOKEN_BUDGET, settings.scheduling)
    recorded, open_requests = Recorded(engine, engine.limits), slots + max(2, slots // 4)
    with tempfile.TemporaryDirectory() as run_directory:
        link: InlineLink | ProcessLink
        if mode == "inline":
            link = InlineLink(Texts(directory, num_steps), open_requests)
        else:
            link = ProcessLink(Path(run_directory), engine, (directory, num_steps, open_requests))
        _loop(Instance(scheduler, recorded, link, lambda _: None, ahead), recorded, slots, num_steps)
        link.close()
    recorded.replayed_tok_s = _replayed_tok_s(engine, recorded.plans[:num_steps], ahead)
    engine.close()
    return recorded


def _loop(instance: Instance, recorded: Recorded, slots: int, num_steps: int) -> None:
    while instance.scheduler.num_waiting + instance.scheduler.num_running < slots:
        instance.turn()
        if recorded.plans:
            break
    while len(recorded.outputs) < num_steps:
        instance.turn()
    recorded.tok_s = _tok_s(recorded.outputs, recorded.collected_s)
    instance.scheduler.cancel_all()
    while not instance.scheduler.is_idle:
        recorded.collect()
        instance.scheduler.apply(recorded.plans[len(recorded.outputs) - 1], recorded.outputs[-1])
    del recorded.outputs[num_steps:], recorded.collected_s[num_steps:]


def _replayed_tok_s(engine: Engine, plans: list[StepPlan], ahead: int) -> float:
    """Returns output tokens per second of the engine alone, with as many steps ahead as the loop."""
    outputs, collected_s, open_steps = [], [], 0
    for index, plan in enumerate(plans):
        engine.launch(plan)
        open_steps += 1
        while open_steps > ahead or (index == len(plans) - 1 and open_steps):
            outputs.append(engine.collect())
            collected_s.append(time.monotonic())
            open_steps -= 1
    return _tok_s(outputs, collected_s)


def _tok_s(outputs: list[StepOutput], collected_s: list[float]) -> float:
    """Returns output tokens per second, from the end of the first counted step."""
    return sum(len(output.tokens) for output in outputs[WARM_UP_STEPS:]) / (
        collected_s[-1] - collected_s[WARM_UP_STEPS - 1]
    )
