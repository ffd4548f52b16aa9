"""Whether the fused layers of an engine are faster here than its library's own operations: both are tried
once for each kind of processor, model, settings and version of the layers, and the result is kept in
`run/trials/`, or beside the request log where `run/` can't be written.

On some processors they win, on others they lose (docs/measured.md). One process tries at a time, so that
several instances do not measure each other. Called by `build` before the engine is made.
"""

from __future__ import annotations

import dataclasses
import fcntl
import gc
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from python_backends.checkpoint.opening import open_source
from python_backends.engine.protocol import Engine
from python_backends.linux.files import write_whole
from python_backends.linux.processor import processor_name
from python_backends.nouns.request import ModelLimits, Request, Sampling
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import ROOT, Settings

log = logging.getLogger("gapless.instance")

PASSES = 3  # the first one is not counted: code is generated, and memory touched
PROMPT_TOKENS = 48  # of each request, one for each slot
OUTPUT_TOKENS = 9
# output tokens for each prompt token of a workload: 3,915 to 9,375 in benchmarks/common/workload.json
OUTPUT_SHARE = 0.42
LEAST_GAIN = 0.02  # the fused layers must be faster by this
ON, OFF = "on", "off"

MakeEngine = Callable[[Settings], Engine]


def with_faster_layers(settings: Settings, make: MakeEngine, layers: str) -> Settings:
    """`settings` with engine.fused_layers on or off, as an earlier trial of these `layers` says; without one
    both are tried now.
    """
    directory = trials(settings)
    path = directory / f"fused-layers-{_key(settings, layers)}.json"
    with _alone(directory):
        chosen = _known(path)
        return with_layers(settings, chosen if chosen is not None else _try_both(settings, make, path))


def trials(settings: Settings) -> Path:
    """Where results are kept."""
    run = ROOT / "run"
    is_writable = os.access(run if run.exists() else ROOT, os.W_OK)
    return (run if is_writable else ROOT / settings.prediction.directory) / "trials"


def with_layers(settings: Settings, fused: str) -> Settings:
    return replace(settings, engine=replace(settings.engine, fused_layers=fused))


def _try_both(settings: Settings, make: MakeEngine, path: Path) -> str:
    log.info("trying with and without fused layers, once on this kind of processor")
    off, on = (_best_ms(make(_smaller(with_layers(settings, way)))) for way in (OFF, ON))
    chosen = ON if off / on - 1 >= LEAST_GAIN else OFF
    log.info(
        "engine.fused_layers = %s: the same work took %.0f ms with them and %.0f ms without (%s; without this"
        " file the next start tries again)",
        chosen,
        on,
        off,
        path,
    )
    _keep(path, {"chosen": chosen, "processor": processor_name(), "on_ms": on, "off_ms": off})
    return chosen


def _best_ms(engine: Engine) -> float:
    """The fastest steps of several passes, with prompts and without: other processes may have been busy
    during some.
    """
    passes = [_pass(engine) for _ in range(PASSES)][1:]
    engine.close()
    del engine
    gc.collect()  # its memory is free before the next engine is made
    prompts_s = min(prompts_s for prompts_s, _ in passes)
    decodes_s = min(decodes_s for _, decodes_s in passes)
    return 1000 * (prompts_s + decodes_s)


def _pass(engine: Engine) -> tuple[float, float]:
    """Every slot serves a request. Returns the seconds of the steps with prompts, and of the decode steps
    that a workload has: their number times the median of the steps in which all slots decode.
    """
    limits = engine.limits
    scheduler = SlotScheduler(limits)
    for request in _requests(limits):
        scheduler.submit(request, np.zeros(0, np.int32))
    prompts_s, decodes_s = 0.0, [0.0]
    while (plan := scheduler.plan()) is not None:
        began_s = time.perf_counter()
        engine.launch(plan)
        output = engine.collect()
        took_s = time.perf_counter() - began_s
        scheduler.apply(plan, output)
        if plan.num_tokens > plan.num_decodes:
            prompts_s += took_s
        elif plan.num_decodes == limits.num_slots:
            decodes_s.append(took_s)
    num_decodes = OUTPUT_SHARE * _prompt_tokens(limits)
    return prompts_s, num_decodes * float(np.median(decodes_s))


def _requests(limits: ModelLimits) -> Iterator[Request]:
    """No two begin with the same tokens."""
    num_tokens = min(OUTPUT_TOKENS, limits.max_model_tokens - _prompt_tokens(limits))
    sampling = Sampling(num_tokens, min_tokens=num_tokens)
    for slot in range(limits.num_slots):
        prompt = np.full(_prompt_tokens(limits), slot % limits.vocab_size, np.int32)
        yield Request(slot, prompt, sampling)


def _prompt_tokens(limits: ModelLimits) -> int:
    return max(1, min(PROMPT_TOKENS, limits.max_model_tokens - OUTPUT_TOKENS))


def _smaller(settings: Settings) -> Settings:
    """With KV blocks for the trial alone, and no longer sequences than these hold."""
    engine, model = settings.engine, settings.model
    num_blocks = engine.slots * -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // engine.block_tokens)
    longest = min(model.max_model_tokens, num_blocks * engine.block_tokens)
    return replace(
        settings,
        engine=replace(engine, kv_blocks=num_blocks),
        model=replace(model, max_model_tokens=longest),
    )


def _key(settings: Settings, layers: str) -> str:
    """Of everything that the times depend on."""
    config = open_source(settings.model_directory).config
    parts = [
        processor_name(),
        str(len(os.sched_getaffinity(0))),
        json.dumps(config, sort_keys=True),
        json.dumps(dataclasses.asdict(replace(settings.model, directory=""))),
        f"{settings.engine.kind} {settings.engine.slots} {settings.engine.threads} {layers}",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """No other process of this checkout tries meanwhile. Where nothing can be written or locked, it does not
    wait for others.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(directory, os.O_RDONLY)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _known(path: Path) -> str | None:
    try:
        chosen = json.loads(path.read_text())["chosen"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return chosen if chosen in (ON, OFF) else None


def _keep(path: Path, result: dict[str, Any]) -> None:
    try:
        write_whole(path, json.dumps(result, indent=1))
    except OSError as error:
        log.warning("the result can't be kept (%s): the next start tries again", error)
