"""All measurements of the torch engine on a GPU, in one call of under ten minutes; correctness before speed.

    python -m benchmarks.gpu --json benchmarks/results/gpu.json

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
* transformers' continuous batching;
* a published model, if `--published` names its GGUF file.

Prints one figure a line when it is measured, and a table at the end; exit code 1 if one is not as wanted.
Needs torch, transformers, tokenizers, msgspec, sortedcontainers, pyzmq and setproctitle, for Triton
nvidia-pytriton and psutil, for the figures of PEFT peft, and no network (README.md explains how to install
them). `--device cpu --quick` tries the script itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gpu import checks
from benchmarks.gpu.model import Measured
from benchmarks.gpu.parts import LEAVE_S, PARTS, guarded
from benchmarks.gpu.report import Ended, Figure, table, write_json


def run(asked: argparse.Namespace) -> int:
    figures: list[Figure] = []
    parts: list[Ended] = []
    until_s = time.monotonic() + asked.minutes * 60
    with tempfile.TemporaryDirectory(prefix="gapless-gpu-") as scratch:
        measured = Measured(Path(scratch) / "model", asked.device, asked.quick, published=asked.published)
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
        parts.append(replace(ended, part=f"capture, {checks.kind_of_step(tried)}"))
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
    parser.add_argument("--published", type=Path, help="the GGUF file of a chat model")
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
