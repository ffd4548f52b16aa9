"""The parts of `gpu`, each in a process of its own that ends in time.

Imports torch, so that the processes have it when they are forked; nothing may touch the device before.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

# a mere question whether there is a GPU would keep forks from using it
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch  # noqa: F401
import transformers  # noqa: F401

from benchmarks.gpu import checks, finetuning, moves, online, published, steps
from benchmarks.gpu.model import Measured
from benchmarks.gpu.report import Ended, Figure, LeftOutError

Part = Callable[[Measured], Iterator[Figure]]
PARTS: dict[str, tuple[Part, float]] = {  # and the seconds that it may take
    "capture": (checks.capture, 60),
    "tokens": (checks.tokens, 110),
    "steps": (steps.steps, 80),
    "gap": (steps.gap, 60),
    "copies": (steps.copies, 40),
    "online": (online.online, 150),
    "triton": (online.triton, 200),
    "finetune": (finetuning.finetune, 120),
    "moves": (moves.moves, 60),
    "transformers": (online.transformers, 60),
    "published": (published.published, 180),
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
