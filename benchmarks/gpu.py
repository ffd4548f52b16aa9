"""All measurements of the torch engine on a GPU, in one call of under ten minutes; correctness before speed.

    python benchmarks/gpu.py --json benchmarks/results/gpu.json

The parts, each in its own process with a time limit, so that a failure does not affect the others:

* whether captured steps work there (else the others run without them, which is printed);
* tokens compared with transformers' on tiny models of every architecture;
* copy bandwidth, and decode steps of Llama-3.1-8B's shape (random weights, made on the device) compared with
  their floor;
* the token gap with requests waiting;
* copies in steady steps, and launches that wait for the device;
* the online work of TensorRT-LLM's table through Gapless's loop in process and through real Triton;
* LoRA training: ours and PEFT's alone, ours in the slack of decodes, and decodes with adapters;
* the pause of requests that move between two instances on the device, and their tokens;
* transformers' continuous batching.

Prints one figure a line when it is measured, and a table at the end; exit code 1 if one is not as wanted.
Needs torch, transformers, tokenizers, msgspec, sortedcontainers, pyzmq and setproctitle, for Triton
nvidia-pytriton and psutil, for the figures of PEFT peft, and no network (README.md explains how to install
them). `--device cpu --quick` tries the script itself.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# a mere question whether there is a GPU would keep forks from using it
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# here, so that the parts' processes have it when they are forked; nothing may touch the device before
import torch
import transformers  # noqa: F401

from benchmarks import gpu_checks, gpu_finetuning, gpu_moves, gpu_online, gpu_steps
from benchmarks.gpu_model import Measured
from benchmarks.gpu_report import Ended, Figure, LeftOutError, table, write_json

Part = Callable[[Measured], Iterator[Figure]]
PARTS: dict[str, tuple[Part, float]] = {  # and the seconds that it may take
    "capture": (gpu_checks.capture, 60),
    "tokens": (gpu_checks.tokens, 110),
    "steps": (gpu_steps.steps, 80),
    "gap": (gpu_steps.gap, 60),
    "copies": (gpu_steps.copies, 40),
    "online": (gpu_online.online, 150),
    "triton": (gpu_online.triton, 200),
    "finetune": (gpu_finetuning.finetune, 100),
    "moves": (gpu_moves.moves, 60),
    "transformers": (gpu_online.transformers, 60),
}
# or spawn, slower: if something has touched the device before the parts do
START = os.environ.get("GAPLESS_GPU_START", "fork")
LEAVE_S = 20.0  # to end what it has started, after its time


def guarded(name: str, measured: Measured, figures: list[Figure], budget_s: float) -> Ended:
    """Runs a part in its own process, for at most `budget_s`. Adds each figure to `figures` when it is
    measured.
    """
    context: Any = multiprocessing.get_context(START)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_part, args=(name, measured, theirs), name=f"gpu-{name}")
    began_s = time.monotonic()
    process.start()
    theirs.close()
    error, left_out = "", False
    try:
        while ours.poll(max(0.0, began_s + budget_s - time.monotonic())):
            said = ours.recv()
            if isinstance(said, Figure):
                print(said.line, flush=True)
                figures.append(said)
            else:
                error, left_out = said
        error = f"took longer than {budget_s:.0f} s"
    except EOFError:
        process.join(LEAVE_S)
        error = error or (f"its process ended with {process.exitcode}" if process.exitcode else "")
    _end(process)
    ended = Ended(name, time.monotonic() - began_s, error, left_out)
    print(
        f"---- {name}: {ended.seconds:.0f} s"
        + (f", {'left out' if left_out else 'FAIL'}: {error}" if error else ""),
        flush=True,
    )
    return ended


def _end(process: Any) -> None:
    if process.is_alive():
        process.terminate()
        process.join(LEAVE_S)
    if process.is_alive():
        process.kill()
        process.join()


def _part(name: str, measured: Measured, pipe: Connection) -> None:
    """The process of a part. SIGTERM ends it through its `finally` blocks."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for figure in PARTS[name][0](measured):
            pipe.send(figure)
    except LeftOutError as reason:
        pipe.send((str(reason), True))
    except Exception:
        pipe.send((traceback.format_exc(), False))


def run(asked: argparse.Namespace) -> int:
    figures: list[Figure] = []
    parts: list[Ended] = []
    until_s = time.monotonic() + asked.minutes * 60
    with tempfile.TemporaryDirectory(prefix="gapless-gpu-") as scratch:
        measured = Measured(Path(scratch) / "model", asked.device, asked.quick)
        measured.write()
        measured = working(measured, figures, parts)
        for number, name in enumerate(asked.only, 1):
            print(f"---- {number} of {len(asked.only)}: {name}", flush=True)
            left_s = until_s - time.monotonic() - LEAVE_S
            if left_s < 0:
                parts.append(Ended(name, 0, "no time was left for it"))
                continue
            parts.append(guarded(name, measured, figures, min(PARTS[name][1], left_s)))
            if asked.json:
                write_json(asked.json, {"device": asked.device}, figures, parts)
    if asked.json:
        write_json(asked.json, {"device": device_name(asked.device)}, figures, parts)
    print(table(figures, parts))
    unwanted = any(figure.verdict == "FAIL" for figure in figures) or any(
        part.error and not part.left_out for part in parts
    )
    return int(unwanted)


def working(measured: Measured, figures: list[Figure], parts: list[Ended]) -> Measured:
    """Returns `measured` with the fastest kind of step that works and gives the right tokens there. A CPU
    captures no steps, and Gapless's kernels do not run on it.
    """
    for graphs in ("auto", "eager") if measured.device != "cpu" else ("eager",):
        tried = replace(measured, cuda_graphs=graphs)
        ended = guarded("capture", tried, figures, PARTS["capture"][1])
        parts.append(replace(ended, part=f"capture, {gpu_checks.kind_of_step(tried)}"))
        if not parts[-1].error and figures[-1].verdict == "ok":
            return tried
    return replace(measured, cuda_graphs="off")


def device_name(device: str) -> str:
    return "none" if device == "cpu" else str(torch.cuda.get_device_name(device))


def part_names(asked: str) -> list[str]:
    names = asked.split(",")
    if wrong := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)!r} is not one of {', '.join(PARTS)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        default=",".join(name for name in PARTS if name != "capture"),
        type=part_names,
        help="parts, of " + ", ".join(PARTS),
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="of the whole call; what is not begun by then is left"
    )
    parser.add_argument("--json", type=Path, help="also write the results here, after every part")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and a few short requests: does it run at all?"
    )
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
