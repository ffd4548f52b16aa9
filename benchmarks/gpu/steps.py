"""The engine alone and under the instance's loop: bandwidth, time of a decode step compared with its floor,
prefill, the token gap, copies in steady steps. Called by `gpu`.

The floor of a decode step is the bytes that it must read, weights (all but the embedding) and KV, divided by
the bandwidth of a plain copy (bytes read and written).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common.clients import Clients, jobs_of, requests_of
from benchmarks.common.recorded_engine import RecordedEngine
from benchmarks.gpu.model import STEPS_AHEAD, Measured
from benchmarks.gpu.report import Figure
from python_backends.engine.torch.engine import TorchEngine
from python_backends.instance.build import build
from python_backends.instance.loop import Instance
from python_backends.nouns.request import Request, Sampling
from python_backends.nouns.step import StepOutput, StepPlan
from python_backends.scheduling.slot_scheduler import SlotScheduler

SLOTS, QUICK_SLOTS = (1, 16, 64, 256), (1, 4)
MOST_OVER_FLOOR = {1: "<= 1.2", 16: "<= 1.2", 64: "<= 1.2"}
CONTEXT_TOKENS, QUICK_CONTEXT = 512, 48
NUM_STEPS, QUICK_STEPS = 100, 8
PREFILL_TOKENS = 8192
COPY_BYTES, QUICK_BYTES = 4 << 30, 1 << 24
GAP_SLOTS, QUICK_GAP_SLOTS = 64, 4
DRAWN: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.1, "seed": 3}

Step = tuple[StepPlan, StepOutput]


def steps(measured: Measured) -> Iterator[Figure]:
    bandwidth = copy_bandwidth(measured)
    yield Figure("steps", "copy bandwidth, read and written", bandwidth / 1e12, "TB/s")
    sizes = QUICK_SLOTS if measured.quick else SLOTS
    engine = engine_of(measured, sizes[-1])
    weights = weight_bytes(engine)
    for slots in sizes:
        prefills, decodes = run_steps(measured, engine, slots)
        step_s = float(np.median([output.busy_s + output.gap_s for _, output in decodes]))
        tokens = float(np.mean([plan.starts.mean() for plan, _ in decodes]))
        floor_s = (weights + slots * tokens * measured.kv_token_bytes) / bandwidth
        note = (
            f"{step_s * 1e3:.3f} ms; floor {floor_s * 1e3:.3f} ms; {slots / step_s:.0f} tokens/s;"
            f" {prediction(measured, slots, round(tokens), bandwidth, floor_s)}"
        )
        wanted = "" if measured.quick else MOST_OVER_FLOOR.get(slots, "")
        yield Figure(
            "steps", f"decode step of {slots} slots over its floor", step_s / floor_s, "", wanted, note
        )
    yield Figure(
        "steps", "prefill", pace_of(prefills), "tokens/s", note=f"steps of {prefills[0][0].num_tokens} tokens"
    )


def prediction(measured: Measured, slots: int, tokens: int, bandwidth: float, floor_s: float) -> str:
    """What `gpu_floor` predicts for this step over its floor, with the bandwidth as it was measured."""
    if importlib.util.find_spec("triton") is None:
        return "predicted only where the package triton is installed"
    from benchmarks.gpu_floor import Gpu, predicted

    better_s, worse_s = predicted(measured.shape, slots, tokens, Gpu(measured.device, bandwidth))
    return f"predicted {better_s / floor_s:.2f} to {worse_s / floor_s:.2f}"


def gap(measured: Measured) -> Iterator[Figure]:
    """Measures the token gap of the instance's own loop while requests wait all the time; without texts."""
    slots, num_steps = (QUICK_GAP_SLOTS, 40) if measured.quick else (GAP_SLOTS, 1000)
    settings = measured.settings(
        slots, 1024 if not measured.quick else 128, 2048 if not measured.quick else 64
    )
    scheduler, engine = build(settings)
    recorded = RecordedEngine(engine, engine.limits)
    longest = 24 if measured.quick else 512
    jobs = jobs_of(
        num_steps * slots // 8, measured.vocabulary, (longest // 4, longest), (longest // 4, longest)
    )
    instance = Instance(
        scheduler,
        recorded,
        Clients(requests_of(jobs), [0.0] * len(jobs)),
        lambda _: None,
        STEPS_AHEAD,
    )
    while len(recorded.outputs) < num_steps:
        instance.turn()
    steady = [output for plan, output in recorded.steps[1:] if not plan.operations and not len(plan.tokens)]
    everything = [output for _, output in recorded.steps[1:]]
    for name, outputs in (("all steps", everything), ("steady steps", steady)):
        gaps_us = np.array([output.gap_s for output in outputs]) * 1e6
        busy_s = sum(output.busy_s for output in outputs)
        wanted = ("<= 50", ">= 0.99") if name == "all steps" and not measured.quick else ("", "")
        note = f"{len(outputs)} steps, {slots} slots, requests waiting"
        yield Figure("gap", f"p50, {name}", float(np.percentile(gaps_us, 50)), "us")
        yield Figure("gap", f"p99, {name}", float(np.percentile(gaps_us, 99)), "us", wanted[0], note)
        yield Figure("gap", f"busy share, {name}", busy_s / (busy_s + gaps_us.sum() / 1e6), "", wanted[1])
    engine.close()


def copies(measured: Measured) -> Iterator[Figure]:
    """Counts copies from host to device in steps without slot changes, and waits for the device in any step,
    with torch's profiler.
    """
    slots = QUICK_GAP_SLOTS if measured.quick else GAP_SLOTS
    engine = engine_of(measured, slots)
    scheduler = filled(measured, engine, slots, num_steps=64)
    ahead = _Ahead(scheduler, engine)
    while not ahead.is_steady(slots):
        ahead.step()

    def steady_steps() -> None:
        for _ in range(16):
            ahead.step()
            assert ahead.is_steady(slots)

    names = profiled(measured, steady_steps)
    ahead.run()
    assert any(name == "aten::embedding" or "Graph" in name for name in names), (
        "the profiler saw no forward pass"
    )
    found = sum("Memcpy HtoD" in name for name in names)
    yield Figure("copies", "from host to device in 16 steady steps", found, "", "<= 0")
    launched = sum("LaunchKernel" in name or "GraphLaunch" in name for name in names)
    yield Figure("copies", "kernels and graphs launched a steady step", launched / 16, "")
    for what, sampling in (("greedy", {}), ("drawn", DRAWN)):
        ahead = _Ahead(filled(measured, engine, slots, num_steps=40, **sampling), engine)
        waits = profiled(measured, ahead.run).count("cudaStreamSynchronize")
        steps = f"of {len(ahead.recorded.plans)} steps: prompts, slot operations, decodes"
        yield Figure(
            "copies", f"waits for the device while steps are launched, {what}", waits, "", "<= 0", steps
        )


def profiled(measured: Measured, work: Callable[[], None]) -> list[str]:
    """Returns the names of all events that torch's profiler records during `work`."""
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (measured.device != "cpu")]
    with profile(activities=activities) as profiler:
        work()
    return [event.name for event in profiler.events() or []]


class _Ahead:
    """The loop without a link: one step is launched before the oldest is read."""

    def __init__(self, scheduler: SlotScheduler, engine: TorchEngine) -> None:
        self.scheduler = scheduler
        self.recorded = RecordedEngine(engine, engine.limits)
        self._launched: list[StepPlan] = []

    def step(self) -> None:
        plan = self.scheduler.plan()
        if plan is not None:
            self.recorded.launch(plan)
            self._launched.append(plan)
        if len(self._launched) > 1 or (plan is None and self._launched):
            self.scheduler.apply(self._launched.pop(0), self.recorded.collect())

    def run(self) -> None:
        while not self.scheduler.is_idle:
            self.step()

    def is_steady(self, slots: int) -> bool:
        """Whether the last two launched steps decoded `slots` rows and changed nothing."""
        last = self.recorded.plans[-2:]
        return len(last) == 2 and all(
            plan.num_decodes == slots and not plan.operations and not len(plan.tokens) for plan in last
        )


def engine_of(measured: Measured, slots: int) -> TorchEngine:
    tokens = 128 if measured.quick else 1024
    return TorchEngine(measured.settings(slots, tokens, PREFILL_TOKENS))


def filled(
    measured: Measured, engine: TorchEngine, slots: int, num_steps: int, **sampling: Any
) -> SlotScheduler:
    """Returns a scheduler with `slots` requests that will decode together for at least `num_steps` steps."""
    context = QUICK_CONTEXT if measured.quick else CONTEXT_TOKENS
    scheduler = SlotScheduler(engine.limits, PREFILL_TOKENS)
    max_tokens = num_steps + -(-slots * context // (PREFILL_TOKENS - slots)) + 4
    generator = np.random.default_rng(0)
    for number in range(slots):
        prompt = generator.integers(0, measured.vocabulary, context).astype(np.int32)
        scheduler.submit(
            Request(number, prompt, Sampling(max_tokens=max_tokens, **sampling)), np.zeros(0, np.int32)
        )
    return scheduler


def run_steps(measured: Measured, engine: TorchEngine, slots: int) -> tuple[list[Step], list[Step]]:
    """Returns the steps with only prefill, and the steps in which all `slots` rows decode."""
    scheduler = filled(measured, engine, slots, QUICK_STEPS if measured.quick else NUM_STEPS)
    ahead = _Ahead(scheduler, engine)
    ahead.run()
    taken = ahead.recorded.steps
    prefills = [step for step in taken if len(step[0].tokens)]
    decodes = [step for step in taken if step[0].num_decodes == slots == len(step[0].slots)]
    return prefills, decodes[2:]


def pace_of(steps: list[Step]) -> float:
    """Tokens a second."""
    return sum(plan.num_tokens for plan, _ in steps) / sum(
        output.busy_s + output.gap_s for _, output in steps
    )


def copy_bandwidth(measured: Measured) -> float:
    """Bytes a second, read and written."""
    size = QUICK_BYTES if measured.quick else COPY_BYTES
    source = torch.ones(size, dtype=torch.uint8, device=measured.device)
    target, timer = torch.empty_like(source), _timer(measured.device)
    times = []
    for _ in range(12):
        timer.begin()
        target.copy_(source)
        times.append(timer.end())
    if measured.device != "cpu":
        torch.cuda.synchronize()
    return 2 * size / float(np.median([read()[0] for read in times[2:]]))


def _timer(device: str) -> Any:
    from python_backends.engine.step_timer import StepTimer, cuda_timer

    return StepTimer() if device == "cpu" else cuda_timer(device)


def weight_bytes(engine: TorchEngine) -> int:
    """Returns the bytes of weights that a decode step reads: all projections, including the head's."""
    decoder = engine.decoder
    projections = [decoder.head, *(each for block in decoder.blocks for each in block.projections.values())]
    return sum(each.weight.numel() * each.weight.element_size() for each in projections)
