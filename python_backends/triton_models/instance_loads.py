"""What the instances carry, as their last heartbeats say, and the gauges that show it. The router, if there
are several instances, is informed of the same.

Owned by the scheduler model's streams thread.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from python_backends.cluster.router import Router
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import JOB_STATUSES, LATE_CAUSES, Load, TrainingLoad
from python_backends.nouns.request import ModelLimits, WaitReason
from python_backends.watching.metrics import Metrics

log = logging.getLogger("gapless.scheduler")


class Shown(NamedTuple):
    """Under which names a number of `Load` is shown."""

    of_all: str = ""  # a gauge of its sum over all instances
    of_each: str = ""  # a gauge with a label for each instance
    in_status: str = ""


NUMBERS = {
    "num_running": Shown("gapless_slots_busy", "gapless_instance_slots_busy", "slots_busy"),
    "num_slots": Shown("gapless_slots_total", in_status="slots"),
    "num_waiting": Shown("", "gapless_instance_waiting", "waiting"),
    "num_used_blocks": Shown("gapless_kv_blocks_used", "gapless_instance_kv_blocks_used", "blocks_used"),
    "num_blocks": Shown("gapless_kv_blocks_total", in_status="blocks"),
    "num_retained_blocks": Shown("gapless_kv_blocks_retained"),
    "num_borrowed_blocks": Shown("gapless_finetuning_borrowed_blocks"),
    "peak_blocks": Shown("gapless_admission_peak_blocks", in_status="peak_blocks"),
    "num_evictions": Shown(in_status="evictions"),
    "num_adapters": Shown("gapless_adapters_loaded"),
    "step_s": Shown("", "gapless_instance_step_seconds", "step_s"),
}


class InstanceLoads:
    """Owns the last Load of each instance; `ready`, `heard`, `lost` and `follow` change it."""

    def __init__(
        self, metrics: Metrics, router: Router | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`router`: None where there is one instance. `clock` returns monotonic seconds."""
        self._metrics = metrics
        self._router = router
        self._clock = clock
        self._counted_s = clock()  # instance seconds, until then
        self._loads: dict[int, InstanceLoad] = {}  # of instances that are ready
        self._num_evictions: dict[int, int] = {}  # that each instance has counted, by its last heartbeat
        self._places: dict[int, tuple[str, int]] = {}  # host and pid of each instance when it got ready
        self.wanted = frozenset({0})  # instances that should run
        self._seen: set[int] = set()  # of these, the ones that have been ready
        self._shown: set[int] = set()  # instances that have gauges of their own
        self._fingerprint = ""  # of the model that instances run

    @property
    def num_slots(self) -> int:
        return sum(load.said.num_slots for load in self._loads.values())

    @property
    def num_running(self) -> int:
        return sum(load.said.num_running for load in self._loads.values())

    @property
    def is_contested(self) -> bool:
        """Whether requests compete for slots or memory in any instance."""
        return any(load.said.is_contested for load in self._loads.values())

    @property
    def wait_reasons(self) -> dict[int, WaitReason | None]:
        """By instance: why requests wait there."""
        return {instance: load.said.wait_reason for instance, load in self._loads.items()}

    def ready(self, instance: int, limits: ModelLimits, host: str = "", pid: int = 0) -> None:
        if self._fingerprint not in ("", limits.fingerprint):
            log.warning(
                "instance %d has another model or other settings than before; open requests go on with it",
                instance,
            )
        self._fingerprint = limits.fingerprint
        self._seen.add(instance)
        self._shown.add(instance)
        self._places[instance] = host, pid
        said = Load(num_slots=limits.num_slots, num_blocks=limits.num_blocks)
        self._loads[instance] = InstanceLoad(instance, limits, said)
        if self._router is not None:
            self._router.ready(instance, limits)

    def heard(self, load: InstanceLoad) -> None:
        self._loads[load.number] = load
        said = load.said
        self._metrics.histograms["gapless_token_gap_seconds"].add(said.gap_counts, said.gap_sum_s)
        for cause, count in zip(LATE_CAUSES, said.late_tokens, strict=False):
            self._metrics.count("gapless_late_tokens_total", count, (("cause", cause),))
        self._count_evictions(load.number, said.num_evictions)
        if said.moved_bytes:
            self._metrics.count("gapless_migration_bytes_total", said.moved_bytes)
        if said.training is not None:
            self._count_training(said.training)
        if self._router is not None:
            self._router.heard(load)

    def _count_evictions(self, instance: int, counted: int) -> None:
        """An instance that was started again counts from 0."""
        before = self._num_evictions.get(instance, 0)
        self._num_evictions[instance] = counted
        self._metrics.count("gapless_evictions_total", counted - before if counted >= before else counted)

    def _count_training(self, training: TrainingLoad) -> None:
        count = self._metrics.count
        count("gapless_finetuning_tokens_total", training.tokens)
        count("gapless_finetuning_wasted_tokens_total", training.wasted_tokens)
        count("gapless_finetuning_steps_total", training.steps)
        if training.steps:
            self._metrics.gauge("gapless_finetuning_loss", training.loss)
        for status, number in zip(JOB_STATUSES, training.jobs, strict=False):
            self._metrics.gauge("gapless_finetuning_jobs", number, (("status", status),))

    def lost(self, instance: int) -> None:
        self._loads.pop(instance, None)
        if self._router is not None:
            self._router.lost(instance)

    def follow(self, wanted: frozenset[int]) -> None:
        """These instances should run; others have ended or will end soon, and carry nothing."""
        self._count_seconds()
        self.wanted = wanted
        self._seen &= wanted
        self._loads = {instance: load for instance, load in self._loads.items() if instance in wanted}

    def export(self) -> None:
        """Sets the gauges."""
        self._count_seconds()
        gauge = self._metrics.gauge
        for field, shown in NUMBERS.items():
            if shown.of_all:
                gauge(shown.of_all, sum(getattr(load.said, field) for load in self._loads.values()))
        draining = self._draining
        gauge("gapless_instances", len(self._loads.keys() - draining), (("state", "ready"),))
        gauge("gapless_instances", len(self._loads.keys() & draining), (("state", "draining"),))
        gauge("gapless_instances", len(self._seen - self._loads.keys()), (("state", "lost"),))
        gauge("gapless_instances", len(self.wanted - self._seen), (("state", "starting"),))
        for instance in self._shown:
            self._export_of(instance)

    def status_of(self, number: int) -> dict[str, Any]:
        """What an instance carries that should run, for people."""
        said = self._said(number)
        freeness = -math.inf
        if self._router is not None and number in self._loads:
            freeness = self._router.freeness(number)
        host, pid = self._places.get(number, ("", 0))
        return {
            "number": number,
            "pid": pid,
            "host": host,
            "state": self.state_of(number),
            **{shown.in_status: getattr(said, field) for field, shown in NUMBERS.items() if shown.in_status},
            "freeness_tokens": freeness if math.isfinite(freeness) else None,
        }

    def num_requests(self, instance: int) -> int:
        """That run or wait there, by the last heartbeat."""
        said = self._said(instance)
        return said.num_running + said.num_waiting

    def is_ready(self, number: int, drained: frozenset[int]) -> bool:
        """Those of `drained` count as ready as long as they are not lost."""
        state = self.state_of(number)
        return state == "ready" or (state == "draining" and number in drained)

    def state_of(self, number: int) -> str:
        """Of an instance that should run."""
        if number not in self._seen:
            return "starting"
        if number not in self._loads:
            return "lost"
        return "draining" if number in self._draining else "ready"

    def _said(self, instance: int) -> Load:
        """Nothing, of one that is not ready."""
        load = self._loads.get(instance)
        return load.said if load is not None else Load()

    @property
    def _draining(self) -> frozenset[int]:
        return self._router.draining if self._router is not None else frozenset()

    def _count_seconds(self) -> None:
        now_s = self._clock()
        self._metrics.count("gapless_instance_seconds_total", (now_s - self._counted_s) * len(self.wanted))
        self._counted_s = now_s

    def _export_of(self, instance: int) -> None:
        labels, said = (("instance", str(instance)),), self._said(instance)
        for field, shown in NUMBERS.items():
            if shown.of_each:
                self._metrics.gauge(shown.of_each, getattr(said, field), labels)
        if self._router is not None:
            freeness = self._router.freeness(instance)
            self._metrics.gauge("gapless_instance_freeness_tokens", freeness, labels)
            count = self._router.num_dispatches.get(instance, 0)
            self._metrics.total("gapless_dispatches_total", count, labels)
