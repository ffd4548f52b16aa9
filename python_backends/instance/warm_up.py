"""Runs a few steps of an engine before the first request comes, so that this does not wait for what libraries
prepare at first use.

On a GPU these are kernels to compile or load, on a CPU code for matrix products, and memory. Keeps no state:
the requests are artificial, and their slot scheduler is dropped with its slots and blocks. Called by `build`
before the instance is ready.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from python_backends.engine.largest_steps import DRAWN
from python_backends.engine.protocol import Engine
from python_backends.nouns.request import Request, Sampling
from python_backends.scheduling.slot_scheduler import SlotScheduler

PROMPT_TOKENS = 32
# ends last: if all rows are greedy, tokens are chosen in another way; its slot needs no release
GREEDY = Sampling(4)

# [steps, 4] loads and [steps] seconds, as `StepTime.learn` takes them
Observed = tuple[NDArray[np.float64], NDArray[np.float64]]


def warm_up(engine: Engine, scheduler: SlotScheduler) -> Observed:
    """Serves three requests to their ends, twice. Two of them draw tokens, because one drawing row takes
    other tensors than several. Returns how long the steps of the second time took: the first steps of a large
    model must not be too long either.

    `scheduler` is a new one over the limits of `engine`, used only here.
    """
    _serve(engine, scheduler)
    return _serve(engine, scheduler)


def _serve(engine: Engine, scheduler: SlotScheduler) -> Observed:
    prompt = np.zeros(
        max(1, min(PROMPT_TOKENS, scheduler.limits.max_model_tokens - GREEDY.max_tokens)), np.int32
    )
    for number, sampling in enumerate((DRAWN, DRAWN.changed(max_tokens=3), GREEDY)):
        scheduler.submit(Request(number, prompt, sampling), np.zeros(0, np.int32))
    times, loads, seconds = scheduler.outlook.step_time, [], []
    while (plan := scheduler.plan()) is not None:
        began_s = time.monotonic()
        engine.launch(plan)
        scheduler.apply(plan, engine.collect())
        loads.append(times.loads(plan))
        seconds.append(time.monotonic() - began_s)
    return np.array(loads, np.float64), np.array(seconds)
