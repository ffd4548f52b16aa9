"""A trace of some steps for chrome://tracing or ui.perfetto.dev: what the loop did, torch's operators, and
when the device worked.

Torch's profiler writes it. Threads of layers in C++ are not seen by it, so forward passes are drawn from the
engine's own times. While nothing is traced none of this is imported. Called by the instance's process between
two turns of its loop.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from python_backends.nouns.step import StepOutput

NUM_STEPS = 20  # in the trace of an instance: a page that is read in a browser
MOST_S = 10.0  # an instance that is idle traces what comes within this time
DEVICE_ROW = {"pid": "device", "tid": "forward pass"}


class Loop(Protocol):
    scheduler: Any
    engine: Any
    link: Any

    def turn(self) -> None: ...


def trace_steps(loop: Loop, num_steps: int, path: Path) -> int:
    """Turns `loop` until `num_steps` steps have been collected, and writes what happened to `path`. How many
    there were.

    Raises OSError if it can't be written.
    """
    plain = loop.scheduler, loop.engine, loop.link
    engine = Recorded(loop.engine, ("launch", "collect"))
    loop.scheduler, loop.engine, loop.link = (
        Recorded(plain[0], ("plan", "apply")),
        engine,
        Recorded(plain[2], ("receive", "publish")),
    )
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    options = _ExperimentalConfig(profile_all_threads=True)  # the engine's too, where it has one
    try:
        with profile(activities=activities, experimental_config=options) as profiled:
            until_s = time.monotonic() + MOST_S
            while len(engine.outputs) < num_steps and time.monotonic() < until_s:
                loop.turn()
    finally:
        loop.scheduler, loop.engine, loop.link = plain
    profiled.export_chrome_trace(str(path))
    _add_forward_passes(path, engine.outputs)
    return len(engine.outputs)


class Recorded:
    """`target` with a span around each call of `names`; keeps the outputs of steps."""

    def __init__(self, target: Any, names: tuple[str, ...]) -> None:
        self.target = target
        self.outputs: list[StepOutput] = []
        for name in names:
            setattr(self, name, self._span(name, getattr(target, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def _span(self, name: str, call: Any) -> Any:
        def spanned(*arguments: Any) -> Any:
            with record_function(name):
                result = call(*arguments)
            if isinstance(result, StepOutput):
                self.outputs.append(result)
            return result

        return spanned


def _add_forward_passes(path: Path, outputs: list[StepOutput]) -> None:
    """To the trace in `path`. `outputs` are those of all collected steps, in order."""
    trace = json.loads(path.read_text())
    collects = [event for event in trace["traceEvents"] if event.get("name") == "collect" and "dur" in event]
    ends_us = sorted(event["ts"] + event["dur"] for event in collects)
    trace["traceEvents"] += [
        {"ph": "X", "name": f"step {output.number}", "ts": began_us, "dur": output.busy_s * 1e6, **DEVICE_ROW}
        for output, began_us in zip(outputs, begins(outputs, ends_us, 1e6), strict=True)
    ]
    path.write_text(json.dumps(trace))


def begins(outputs: list[StepOutput], collected: list[float], unit: float) -> list[float]:
    """When each step's forward pass began, on the clock by which its output was `collected`, which has `unit`
    ticks a second.

    Busy times and gaps give the distances; no step is collected before its end, and at least one as soon as
    it had ended.
    """
    starts, now = [], 0.0
    for output in outputs:
        now += output.gap_s * unit
        starts.append(now)
        now += output.busy_s * unit
    ended = zip(collected, starts, outputs, strict=True)
    offset = min((seen - start - output.busy_s * unit for seen, start, output in ended), default=0.0)
    return [start + offset for start in starts]
