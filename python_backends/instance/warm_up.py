"""Runs a few steps of an engine before the first request comes, so that this does not wait for what libraries
prepare at first use.

On a GPU these are kernels to compile or load, on a CPU code for matrix products, and memory. Keeps no state:
the requests are artificial, and their scheduler is dropped with its slots and blocks. Called by `build`
before the instance is ready.
"""

from __future__ import annotations

import numpy as np

from python_backends.engine.largest_steps import DRAWN
from python_backends.engine.protocol import Engine
from python_backends.nouns.request import Request, Sampling
from python_backends.scheduling.scheduler import SlotScheduler

PROMPT_TOKENS = 32
# ends last: if all rows are greedy, tokens are chosen in another way; its slot needs no release
GREEDY = Sampling(4)


def warm_up(engine: Engine, scheduler: SlotScheduler) -> None:
    """Serves three requests to their ends. Two of them draw tokens, because one drawing row takes other
    tensors than several.

    `scheduler` is a new one over the limits of `engine`, used only here.
    """
    prompt = np.zeros(
        max(1, min(PROMPT_TOKENS, scheduler.limits.max_model_tokens - GREEDY.max_tokens)), np.int32
    )
    for number, sampling in enumerate((DRAWN, DRAWN.changed(max_tokens=3), GREEDY)):
        scheduler.submit(Request(number, prompt, sampling), np.zeros(0, np.int32))
    while (plan := scheduler.plan()) is not None:
        engine.launch(plan)
        scheduler.apply(plan, engine.collect())
