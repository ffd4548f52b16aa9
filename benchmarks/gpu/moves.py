"""Moves between two instances on one device. Called by `gpu`.

Two instance processes, each with a model of its own and a small KV cache, and the scheduler model's parts in
this process (`migration/front.py`). Measured is the pause of a request that moves while short requests run at
both instances; then a request that runs alone moves, and must get the tokens that it gets without a move.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.gpu.model import Measured
from benchmarks.gpu.report import Figure
from benchmarks.migration.__main__ import MAX_MODEL_TOKENS, Amount, Answers, downtimes, let_grow, move, start
from benchmarks.migration.front import INSTANCES, Front
from benchmarks.migration.report import WAYS, Trial
from python_backends.settings import ClusterSettings, Settings

SLOTS, TOKEN_BUDGET, KV_GIB = 8, 2048, 6.0
BACKGROUND = 4  # short requests of each instance
LENGTHS, QUICK_LENGTHS = (256, 2048), (48,)
NUM_MOVES, QUICK_MOVES = 6, 3  # with blocks, of each length
ALONE_TOKENS, ALONE_MOVES = 128, 4
MOST_STEPS = "<= 2"  # one step is launched ahead of the one that is read


def moves(measured: Measured) -> Iterator[Figure]:
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.closing(Front(settings_of(measured), Path(directory))) as front,
    ):
        front.set_background(BACKGROUND)
        amount = Amount(
            QUICK_LENGTHS if measured.quick else LENGTHS,
            QUICK_MOVES if measured.quick else NUM_MOVES,
            rounds=0,
            losses=0,
        )
        trials = list(downtimes(front, amount, Answers(front)))
        for tokens in amount.lengths:
            yield from pauses(measured, tokens, [each for each in trials if each.tokens == tokens])
        front.set_background(0)
        yield same_tokens(front)


def settings_of(measured: Measured) -> Settings:
    made = measured.settings(SLOTS, MAX_MODEL_TOKENS, TOKEN_BUDGET)
    engine = replace(made.engine, kind="torch", kv_memory_gib=min(KV_GIB, measured.kv_gib))
    cluster = ClusterSettings(instances=len(INSTANCES))
    return replace(made, engine=engine, cluster=cluster)


def pauses(measured: Measured, tokens: int, trials: list[Trial]) -> Iterator[Figure]:
    step_ms = float(np.median(np.concatenate([each.gaps_s for each in trials]))) * 1e3
    pause_ms = {
        way: float(np.median([each.downtime_ms for each in trials if each.moved.way == way])) for way in WAYS
    }
    longest_ms = max(each.downtime_ms for each in trials if each.moved.way == WAYS[0])
    yield Figure(
        "moves",
        f"pause of a request of {tokens} tokens, in its steps",
        pause_ms["blocks"] / step_ms,
        "",
        "" if measured.quick else MOST_STEPS,
        f"median {pause_ms['blocks']:.2f} ms, longest {longest_ms:.2f} ms; a step {step_ms:.2f} ms",
    )
    for way, name in (("blocking", "held before it is copied"), ("recompute", "computed again")):
        yield Figure("moves", f"pause of a request of {tokens} tokens, {name}", pause_ms[way], "ms")


def same_tokens(front: Front) -> Figure:
    """A request that is alone, with moves and without: all its steps have one row."""
    moved = start(front, ALONE_TOKENS)
    for _ in range(ALONE_MOVES):
        move(front, moved, "blocks")
    let_grow(front, moved, 1)
    front.end(moved)
    undisturbed = start(front, ALONE_TOKENS, moved.stream.request.prompt, moved.stream.instance)
    count = len(moved.stream.tokens)
    let_grow(front, undisturbed, count - len(undisturbed.times_s))
    front.end(undisturbed)
    pairs = zip(moved.stream.tokens, undisturbed.stream.tokens[:count], strict=True)
    share = float(np.mean([ours == wanted for ours, wanted in pairs]))
    return Figure(
        "moves",
        "tokens of a moved request that are those without a move",
        share,
        "",
        ">= 1",
        f"{count} tokens, {ALONE_MOVES} moves",
    )
