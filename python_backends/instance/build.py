"""Makes the parts of an instance: the engine of the settings, a slot scheduler over it, and what copies KV
blocks to other instances.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from python_backends.checkpoint.facts import read_facts
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError
from python_backends.engine.choice import choose
from python_backends.engine.kinds import kind_of
from python_backends.engine.protocol import Engine, ExportsBlocks, FollowsGuides, TakesAdapters, Trains
from python_backends.finetuning.jobs import jobs_directory
from python_backends.guides.guides import Guides
from python_backends.guides.vocabulary import Vocabulary
from python_backends.instance.adapter_files import AdapterFiles
from python_backends.instance.adapter_thread import AdapterThread
from python_backends.instance.adapters import InstanceAdapters
from python_backends.instance.guided_requests import GuidedRequests
from python_backends.instance.job_watch import JobWatch
from python_backends.instance.spare_time import SpareTime, SpareWork
from python_backends.instance.warm_up import warm_up
from python_backends.linux.start_clock import start_clock
from python_backends.moving.copier import Copier
from python_backends.moving.moves import Moves
from python_backends.moving.wire import BlocksWire
from python_backends.nouns.request import AdapterVersion
from python_backends.scheduling.policies.fcfs import reserve_max_tokens
from python_backends.scheduling.self_planned import SelfPlannedScheduler, reserve_likely
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import TRAINS, Settings
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.vocabulary import vocabulary_of
from python_backends.wires.network import read_network

if TYPE_CHECKING:
    from python_backends.instance.training import Training

log = logging.getLogger("gapless.instance")


def build(settings: Settings) -> tuple[SlotScheduler, Engine]:
    """The engine of the settings and a slot scheduler over it. Raises SettingsError if the settings or the
    model can't be served.
    """
    settings = choose(settings).settings  # the launcher has done so; benchmarks and tests leave it open
    kind = kind_of(settings)
    engine = kind.make(settings)
    gc.collect()
    gc.freeze()  # loaded objects stay: without this, a garbage collection takes as long as a step
    start_clock.ended("engine")
    limits = engine.limits
    # a request always fits if it runs alone
    limits = limits.changed(max_model_tokens=min(limits.max_model_tokens, limits.kv_tokens))
    log.info("%d slots, %d KV blocks of %d tokens", limits.num_slots, limits.num_blocks, limits.block_tokens)
    if engine.plans_steps:
        reserve = reserve_likely if kind.reserves_likely(settings) else reserve_max_tokens
        return SelfPlannedScheduler(
            limits, settings.engine.token_budget, settings.scheduling, reserve
        ), engine
    schedulers = partial(SlotScheduler, limits, settings.engine.token_budget, settings.scheduling)
    scheduler = schedulers()
    if kind.warms_up:
        scheduler.outlook.step_time.learn(*warm_up(engine, schedulers()))
    start_clock.ended("first steps")
    return scheduler, engine


def build_copier(settings: Settings, engine: Engine, run_directory: Path, number: int) -> Copier | None:
    """What copies KV blocks between this instance, whose number is given, and others; not started yet. None
    if no request moves with its blocks.
    """
    cluster = settings.cluster
    if cluster.most_instances == 1 or cluster.move != "blocks" or not isinstance(engine, ExportsBlocks):
        return None
    network = read_network(run_directory)
    endpoint = BlocksWire.endpoint_in(run_directory, number) if network is None else network.own_endpoint
    keys = None if network is None else network.keys
    wire = BlocksWire(endpoint, engine.kv_format, engine.block_bytes, keys)
    return Copier(wire, engine)


def build_training(
    settings: Settings,
    engine: Engine,
    scheduler: SlotScheduler,
    published: Callable[[], None] = lambda: None,
) -> Training | None:
    """What trains adapters beside serving; None where the engine can't, or shall not. `published`: is called
    by another thread when an adapter is in the directory of adapters.
    """
    if not (isinstance(engine, Trains) and engine.can_train):
        return None
    # brings torch, which other engines don't need
    from python_backends.instance.training import Training

    return Training(engine, scheduler.limits, scheduler.blocks, settings.adapters_directory, published)


def spare_time(settings: Settings, *works: SpareWork | None) -> SpareTime:
    """For those of `works` that there are."""
    found = [work for work in works if work is not None]
    return SpareTime(found, settings.scheduling.late_token_ms / 1000)


def watch_jobs(settings: Settings, training: Training | None, wake: Callable[[], None]) -> JobWatch | None:
    """The thread that finds jobs, started; None where the settings want no training."""
    if not settings.finetuning.enabled:
        return None
    refusal = "" if training is not None else _refusal(settings)
    watch = JobWatch(jobs_directory(settings), training, refusal, wake, settings.server)
    watch.start()
    return watch


def _refusal(settings: Settings) -> str:
    """Why this server trains nothing, and what to do."""
    with suppress(CheckpointError):  # of an engine of others, which reads another thing
        if read_facts(open_source(settings.model_directory)).has_experts:
            return f"model.directory = '{settings.model_directory}': mixtures of experts are not trained"
    return (
        f"engine.kind = '{settings.engine.kind}', model.device = '{settings.model.device}', model.weights ="
        f" '{settings.model.weights}', engine.cuda_graphs = '{settings.engine.cuda_graphs}': {TRAINS}.\n"
        "Start the server so, with adapters.directory, or train without one: add --alone to submit (with"
        " make: ARGS=--alone)"
    )


def start_adapters(
    settings: Settings,
    scheduler: SlotScheduler,
    engine: Engine,
    wake: Callable[[], None],
    show: Callable[[tuple[AdapterVersion, ...]], None],
) -> InstanceAdapters | None:
    """The adapters of this instance, found and checked; None if there are to be none, or the engine keeps
    them by itself. `wake`: what wakes the loop; `show` gets the list.
    """
    directory = settings.adapters_directory
    if directory is None or not isinstance(engine, TakesAdapters):
        show(scheduler.limits.adapters)
        return None
    files = AdapterFiles(directory, engine.read_adapter)
    thread = AdapterThread(files, wake)
    return InstanceAdapters(scheduler, engine, thread, settings.adapters.max_loaded, show)


def start_guides(
    settings: Settings, scheduler: SlotScheduler, engine: Engine, wake: Callable[[], None]
) -> GuidedRequests:
    """What has guides prepared, if the engine follows any. `wake`: what wakes the loop."""
    if not isinstance(engine, FollowsGuides):
        return GuidedRequests()
    guides = Guides(partial(_vocabulary, settings.model_directory, scheduler.limits.vocab_size))
    engine.follow(guides)
    return GuidedRequests(guides, wake)


def _vocabulary(directory: Path, num_rows: int) -> Vocabulary:
    return vocabulary_of(read_checkpoint(directory), num_rows)


def start_moves(
    settings: Settings, scheduler: SlotScheduler, copier: Copier | None, wake: Callable[[], None]
) -> Moves | None:
    """The moves of this instance, with its copier started; None without one. `wake`: what wakes the loop."""
    if copier is None:
        return None
    copier.start(wake)
    return Moves(scheduler, copier, settings.steps_ahead)
