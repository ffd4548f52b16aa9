"""How far an engine agrees with float32 on four English texts, each token after the true ones before it: how
many of the most likely tokens are the same, and the perplexity.

Imports only the standard library at first, because every peer's environment has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEXTS = tuple(each.strip() for each in Path(__file__).with_name("english.txt").read_text().split("\n%\n"))


@dataclass(slots=True)
class Scores:
    """Of a text's tokens but the first: the log-probability of each, and the most likely one in its place."""

    log_probs: list[float] = field(default_factory=list)
    likeliest: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TextAgreement:
    likeliest: float  # share of places whose most likely token is that of the reference
    perplexity: float


def text_agreement(reference: Sequence[Scores], found: Sequence[Scores]) -> TextAgreement:
    """Of the same texts."""
    wanted, likeliest = ([token for each in all_ for token in each.likeliest] for all_ in (reference, found))
    log_probs = [each for scores in found for each in scores.log_probs]
    same = sum(one == other for one, other in zip(wanted, likeliest, strict=True))
    return TextAgreement(same / len(wanted), math.exp(-sum(log_probs) / len(log_probs)))


def own_scores(engine: Any, token_budget: int, texts: Sequence[Sequence[int]]) -> list[Scores]:
    """By an engine of this project."""
    import numpy as np

    from python_backends.nouns.request import Request, Sampling
    from python_backends.scheduling.slot_scheduler import SlotScheduler

    scheduler = SlotScheduler(engine.limits, token_budget)
    sampling = Sampling(max_tokens=1, log_probs=True, num_top_log_probs=1)
    for index, text in enumerate(texts):
        request = Request(index, np.array(text, np.int32), sampling, wants_prompt_log_probs=True)
        scheduler.submit(request, np.zeros(0, np.int32))
    found = [Scores() for _ in texts]
    while (plan := scheduler.plan()) is not None:
        engine.launch(plan)
        output = engine.collect()
        if (scored := scheduler.prompt_log_probs(plan, output)) is not None:
            ids, values = scored.request_ids.tolist(), scored.values
            for index, log_prob, likeliest in zip(
                ids, values.chosen.tolist(), values.top_ids.tolist(), strict=True
            ):
                found[index].log_probs.append(log_prob)
                found[index].likeliest.append(likeliest)
        scheduler.apply(plan, output)
    return found
