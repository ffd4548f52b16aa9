"""The first steps of an engine, taken before anybody asks: what libraries make ready at first use, the first prompt need not wait for.

On a GPU these are kernels to be compiled or loaded, on a CPU code for products, and memory. Owns nothing and leaves nothing: the
requests are made up, and their scheduler is forgotten with its slots and blocks. Called by the instance before it is ready.
"""

from __future__ import annotations

import numpy as np

from python_backends.engine.protocol import Engine
from python_backends.nouns.request import Request, Sampling
from python_backends.scheduling.scheduler import SlotScheduler

PROMPT_TOKENS = 32
DRAWN = Sampling(2, temperature=1.0, top_k=8, top_p=0.9, min_p=0.01, repetition_penalty=1.1, bad_words=((0, 1),), log_probs=True)
GREEDY = Sampling(4)  # goes on alone: tokens are chosen in another way then, and its slot needs no release


def warm_up(engine: Engine, scheduler: SlotScheduler) -> None:
    """Three requests from their prompts to their ends; two of them draw, because of one row other tensors are made than of several.

    `scheduler` is a new one over the limits of `engine`, for this alone.
    """
    prompt = np.zeros(max(1, min(PROMPT_TOKENS, scheduler.limits.max_model_tokens - GREEDY.max_tokens)), np.int32)
    for number, sampling in enumerate((DRAWN, DRAWN.changed(max_tokens=3), GREEDY)):
        scheduler.submit(Request(number, prompt, sampling), np.zeros(0, np.int32))
    while (plan := scheduler.plan()) is not None:
        engine.launch(plan)
        scheduler.apply(plan, engine.collect())
