"""Makes the parts of an instance: the engine of the settings, and a slot scheduler over it."""

from __future__ import annotations

import gc
import logging
from functools import partial

from python_backends.engine.engine_thread import EngineThread
from python_backends.engine.kinds import kind_of
from python_backends.engine.protocol import Engine
from python_backends.instance.warm_up import warm_up
from python_backends.scheduling.policies.fcfs import reserve_max_tokens
from python_backends.scheduling.scheduler import SlotScheduler
from python_backends.scheduling.self_planned import SelfPlannedScheduler, reserve_likely
from python_backends.settings import Settings, SettingsError

log = logging.getLogger("gapless.instance")


def build(settings: Settings) -> tuple[SlotScheduler, Engine]:
    """The engine of the settings and a slot scheduler over it. Raises
    SettingsError if the settings or the model can't be served.
    """
    if settings.steps_ahead and not settings.scheduling.static_slots:
        raise SettingsError(
            f"engine.steps_ahead = {settings.steps_ahead}: scheduling.static_slots = false takes 0"
        )
    kind = kind_of(settings)
    make = partial(kind.make, settings)
    engine = (
        EngineThread(make) if settings.steps_ahead and settings.model.device in kind.blocks_on else make()
    )
    gc.collect()
    gc.freeze()  # loaded objects stay: without this, a garbage collection takes as long as a step
    limits = engine.limits
    # a request always fits if it runs alone
    limits = limits.changed(max_model_tokens=min(limits.max_model_tokens, limits.kv_tokens))
    log.info("%d slots, %d KV blocks of %d tokens", limits.num_slots, limits.num_blocks, limits.block_tokens)
    if engine.plans_steps:
        reserve = (
            reserve_likely if settings.tensorrt_llm.capacity == "max_utilization" else reserve_max_tokens
        )
        return SelfPlannedScheduler(
            limits, settings.engine.token_budget, settings.scheduling, reserve
        ), engine
    schedulers = partial(SlotScheduler, limits, settings.engine.token_budget, settings.scheduling)
    if kind.warms_up:
        warm_up(engine, schedulers())
    return schedulers(), engine
