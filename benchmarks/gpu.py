"""Checks and measures the torch engine on a CUDA device, in one call of a few minutes.

    python benchmarks/gpu.py --json benchmarks/results/gpu.json

Checks first: greedy tokens in float32 against transformers on tiny models of every architecture, whole and resumed; the same seed
alone and in a batch. Then measures, in bfloat16 on random weights: milliseconds a decode step by number of slots, beside the floor that
reading the weights sets, and the work of peers.py beside transformers' static generate. Needs torch, transformers, tokenizers, msgpack,
sortedcontainers, pyzmq and setproctitle, and no network. A verdict a line; ends with 1 if a check failed. `--device cpu --quick` tries
the script itself without a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import peer_report
from benchmarks.peer_engines import ENGINES
from benchmarks.peer_models import SHAPES, VOCABULARY, make_model
from benchmarks.peer_report import Row
from benchmarks.peer_work import MAX_MODEL_TOKENS, load_work
from python_backends.config import EngineSettings, ModelSettings, Settings
from python_backends.engine.torch_engine import TorchEngine
from python_backends.request import Request, Sampling
from python_backends.scheduling.scheduler import SlotScheduler
from tests.cpu.tiny_models import TINY, Agreement, Serving, TinyModel, build, random_requests

SLOTS = (1, 16, 64, 256)
CONTEXT_TOKENS = 200
COPY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Steps:
    """Decode steps with `slots` rows; the floor is what a plain copy of the weights takes."""

    shape: str
    slots: int
    step_ms: float
    tok_s: float
    floor_ms: float


def say(passed: bool, text: str) -> bool:
    print(f"{'ok  ' if passed else 'FAIL'} {text}", flush=True)
    return passed


# --- checks


def tiny_engine(tiny: TinyModel, device: str) -> TorchEngine:
    settings = tiny.settings()
    return TorchEngine(replace(settings, model=replace(settings.model, device=device)))


def check_parity(name: str, directory: Path, device: str) -> bool:
    """Sixteen requests over four slots, then each again behind its first ten tokens. The reference runs on the CPU."""
    tiny = TinyModel(directory, build(name), Agreement())
    tiny.model.save_pretrained(directory)
    engine, requests = tiny_engine(tiny, device), random_requests(16)
    whole, resumed = dict(Serving(engine).run(requests)), Serving(engine)
    for request in requests:
        resumed.submit(request, whole[request.request_id][:10])
    resumed.run()
    try:
        for request in requests:
            tiny.check(request, whole[request.request_id])
            tiny.check(request, resumed.answers[request.request_id])
    except AssertionError as error:
        return say(False, f"{name}: {error}")
    return say(True, f"{name}: {tiny.agreement.num_tokens} tokens as transformers', {tiny.agreement.num_ties} ties")


def check_seeds(directory: Path, device: str) -> bool:
    engine = tiny_engine(TinyModel(directory, None, Agreement()), device)
    requests = random_requests(8, temperature=1.0, top_k=40, top_p=0.9, seed=5)
    together = dict(Serving(engine).run(requests))
    equal = sum(Serving(engine).run([request])[request.request_id] == together[request.request_id] for request in requests)
    return say(equal == len(requests), f"the same seed gives the same tokens alone and in a batch: {equal} of {len(requests)}")


# --- measurements


def step_ms(engine: TorchEngine, slots: int, num_steps: int) -> float:
    """Median milliseconds of a step in which all `slots` rows decode."""
    scheduler = SlotScheduler(engine.limits, token_budget=slots * CONTEXT_TOKENS)
    generator = np.random.default_rng(0)
    for number in range(slots):
        prompt = generator.integers(0, VOCABULARY, CONTEXT_TOKENS).astype(np.int32)
        scheduler.submit(Request(number, prompt, Sampling(max_tokens=num_steps)), np.zeros(0, np.int32))
    times = []
    while not scheduler.is_idle:
        started = time.perf_counter()
        plan = scheduler.plan()
        assert plan is not None
        engine.launch(plan)
        scheduler.apply(plan, engine.collect())
        if plan.num_decodes == slots == len(plan.slots):
            times.append(time.perf_counter() - started)
    return float(np.median(times)) * 1e3


def copy_ms(num_bytes: int, device: str) -> float:
    """How long reading so many bytes takes at the pace of a plain copy."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target, times = torch.empty_like(source), []
    for _ in range(10):
        synchronize(device)
        started = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        times.append(time.perf_counter() - started)
    return num_bytes / COPY_BYTES * float(np.median(times)) * 1e3


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def measure_steps(shape: str, directory: Path, device: str, num_steps: int) -> Iterator[Steps]:
    floor_ms = copy_ms(sum(path.stat().st_size for path in directory.glob("*.safetensors")), device)
    model = ModelSettings(str(directory), dtype="bfloat16", device=device, max_model_tokens=MAX_MODEL_TOKENS)
    for slots in SLOTS:
        engine = TorchEngine(Settings(model=model, engine=EngineSettings(slots=slots, kv_memory_gib=8.0)))
        milliseconds = step_ms(engine, slots, num_steps)
        row = Steps(shape, slots, milliseconds, slots / milliseconds * 1e3, floor_ms)
        say(True, f"{shape}, {slots} slots: {row.step_ms:.2f} ms a step, {row.tok_s:.0f} tokens/s; floor {floor_ms:.2f} ms")
        yield row


def measure_work(shape: str, directory: Path, device: str, rounds: int, quick: bool) -> list[Row]:
    """Medians of our engine and of transformers, in turn, in this process."""
    work = load_work(quick)
    engines = {name: ENGINES[name](directory, "bfloat16", work.in_flight, device) for name in ("gapless_torch", "transformers")}
    rows: dict[str, list[Row]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name, engine in engines.items():
            peak = torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else 0.0
            row = peer_report.row_of(name, shape, "bfloat16", engine.run(work), peak)
            print(f"     {shape} {name}: {'round ' + str(number) if number else 'warm-up'}, {row.tok_s:.0f} tokens/s", flush=True)
            rows[name] += [row] if number else []
    return [peer_report.median(each) for each in rows.values()]


def run(asked: argparse.Namespace) -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    num_steps, rounds = (8, 1) if asked.quick else (100, asked.rounds)
    passed: list[bool] = []
    steps: list[Steps] = []
    work: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in sorted(TINY):
            passed.append(check_parity(name, Path(scratch) / name, asked.device))
        passed.append(check_seeds(Path(scratch) / sorted(TINY)[0], asked.device))
        for shape in asked.shapes.split(","):
            directory = Path(scratch) / shape
            make_model(shape, "bfloat16", directory)
            steps += measure_steps(shape, directory, asked.device, num_steps)
            work += measure_work(shape, directory, asked.device, rounds, asked.quick)
    if asked.json:
        write_json(asked, passed, steps, work)
    for what, ratio in peer_report.ratios(work).items():
        print(f"{what}: {ratio:.2f}")
    print(peer_report.table(work))
    return 0 if all(passed) else 1


def write_json(asked: argparse.Namespace, passed: list[bool], steps: list[Steps], work: list[Row]) -> None:
    device = torch.cuda.get_device_name() if asked.device != "cpu" else "none"
    result: dict[str, Any] = {
        "machine": {**peer_report.machine(), "gpu": device},
        "versions": peer_report.versions(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "checks": {"passed": sum(passed), "of": len(passed)},
        "steps": [asdict(row) for row in steps],
        "rows": [asdict(row) for row in work],
        "ratios": peer_report.ratios(work),
    }
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(result, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="S,M", help="of " + ", ".join(SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--quick", action="store_true", help="a few short requests, one round: does it run at all?")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
