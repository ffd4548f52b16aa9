"""What the scheduler model does about instances: which of them it listens to, and what it writes down."""

from __future__ import annotations

from typing import Any

from python_backends.cluster.router import Router
from python_backends.cluster.scaling import Scaling
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load, TrainingLoad
from python_backends.nouns.messages import Hello
from python_backends.nouns.request import ModelLimits
from python_backends.settings import ClusterSettings, StreamSettings
from python_backends.streams.table import StreamTable
from python_backends.triton_models.instance_watch import LOOK_EVERY_S, InstanceWatch
from python_backends.watching.board import Board
from python_backends.watching.cluster_state import ClusterState
from python_backends.watching.launcher_record import LauncherRecord
from python_backends.watching.metrics import Metrics
from python_backends.wires.sessions import InstanceLost, InstanceReady

LIMITS = ModelLimits(max_model_tokens=64, vocab_size=100, num_slots=4, num_blocks=100, block_tokens=16)


class Watch:
    """`board`: that of an earlier scheduler model."""

    def __init__(self, board: Board | None = None, **cluster: float) -> None:
        self.settings = ClusterSettings(**cluster)  # type: ignore[arg-type]
        self.metrics, self.board = Metrics(), board or Board()
        router = Router(self.settings) if self.settings.most_instances > 1 else None
        self.table = StreamTable(StreamSettings(), lambda: 0, lambda words: 4, self.metrics, router)
        self.now_s = 0.0
        self.watch = InstanceWatch(
            self.settings, self.board, router, self.table, self.metrics, lambda: self.now_s
        )
        self.look()

    @property
    def scaling(self) -> Scaling:
        assert self.watch.cluster is not None
        return self.watch.cluster.scaling

    def look(self) -> None:
        self.watch.look()

    def ended(self) -> list[int]:
        self.now_s += 2 * LOOK_EVERY_S
        return self.watch.ended()

    def hear(self, *news: Any) -> None:
        for each in news:
            self.watch.readers[type(each)](each)
        self.look()

    def get_ready(self, *numbers: int) -> None:
        for number in numbers:
            self.hear(InstanceReady(number, Hello(LIMITS)))
            self.hear(InstanceLoad(number, LIMITS, Load(num_slots=4, num_blocks=100)))

    def run(self) -> list[int]:
        """As the launcher reads it."""
        state = ClusterState.read(self.board)
        return sorted(state.wanted) if state is not None else []

    def states(self) -> dict[str, float]:
        self.watch.loads.export()
        return {
            labels[0][1]: value
            for (name, labels), value in self.metrics.gauges.items()
            if name == "gapless_instances" and value
        }

    @property
    def num_losses(self) -> float:
        return self.metrics.counters["gapless_instance_losses_total", ()]


def test_which_instances_should_run_is_written_down_at_once() -> None:
    watch = Watch(instances=2)
    assert watch.run() == [0, 1]
    assert watch.states() == {"starting": 2}
    watch.get_ready(0)
    assert watch.states() == {"starting": 1, "ready": 1}
    watch.get_ready(1)
    watch.scaling.scale(1)
    watch.look()
    watch.look()
    assert watch.run() == [0]
    assert watch.states() == {"ready": 1}


def test_the_end_of_an_instance_that_should_not_run_is_no_loss() -> None:
    watch = Watch(instances=2)
    watch.get_ready(0, 1)
    watch.scaling.scale(1)
    watch.look()
    watch.look()
    watch.hear(InstanceLoad(1, LIMITS, Load(num_running=3, num_slots=4)))
    assert watch.watch.loads.num_running == 0, "what it says is of no interest"
    watch.hear(InstanceLost(1))
    assert watch.num_losses == 0
    watch.scaling.scale(2)
    watch.look()
    assert watch.run() == [0, 1]
    assert watch.states() == {"starting": 1, "ready": 1}, "it is another one"
    watch.get_ready(1)
    watch.hear(InstanceLost(1))
    assert watch.num_losses == 1, "this one should run"
    assert watch.states() == {"lost": 1, "ready": 1}


def test_the_next_scheduler_model_goes_on_with_the_instances_and_the_orders() -> None:
    before = Watch(instances=1, max_instances=3)
    ClusterState(frozenset({0, 2}), frozenset({2}), 2).write(before.board)
    watch = Watch(before.board, instances=1, max_instances=3)
    assert watch.run() == [0, 2]
    watch.get_ready(0, 1, 2)
    assert watch.states() == {"ready": 1, "draining": 1}, "number 1 is about to end"
    assert watch.table.submissions.instances.ready == [0]
    watch.scaling.restore(2)
    watch.look()
    assert watch.table.submissions.instances.ready == [0, 2]
    assert ClusterState.read(watch.board) == ClusterState(frozenset({0, 2}), frozenset(), 2)


def test_the_seconds_of_all_instances_are_added_up() -> None:
    now_s = 0.0
    watch = Watch(instances=3)
    loads, name = watch.watch.loads, ("gapless_instance_seconds_total", ())
    loads._clock = lambda: now_s
    loads._counted_s, watch.metrics.counters[name] = 0.0, 0.0
    now_s = 10.0
    loads.follow(frozenset({0}))
    now_s = 15.0
    loads.export()
    assert watch.metrics.counters[name] == 3 * 10 + 5


def test_one_instance_alone_shows_the_time_of_its_step_too() -> None:
    watch = Watch()
    watch.get_ready(0)
    watch.hear(InstanceLoad(0, LIMITS, Load(step_s=0.02)))
    watch.watch.loads.export()
    labels = (("instance", "0"),)
    assert watch.metrics.gauges["gapless_instance_step_seconds", labels] == 0.02
    assert ("gapless_instance_freeness_tokens", labels) not in watch.metrics.gauges


def test_a_heartbeat_of_another_version_hurts_nothing() -> None:
    """Its token gaps and jobs are counted by other bounds and states."""
    watch = Watch(instances=2)
    watch.get_ready(0, 1)
    watch.hear(
        InstanceLoad(0, LIMITS, Load(num_running=3, gap_counts=(1, 2), training=TrainingLoad(jobs=(4,))))
    )
    watch.watch.loads.export()
    assert watch.metrics.gauges["gapless_slots_busy", ()] == 3
    assert watch.metrics.gauges["gapless_finetuning_jobs", (("status", "queued"),)] == 4
    assert sum(watch.metrics.histograms["gapless_token_gap_seconds"].counts) == 0


def test_an_instance_that_the_launcher_starts_again_has_ended_and_its_next_life_has_not() -> None:
    watch = Watch(instances=2)
    launcher = LauncherRecord(watch.board, ("instance-0", "instance-1"))
    launcher.count_restart("instance-1")
    watch.get_ready(0, 1)
    assert watch.ended() == []
    launcher.count_restart("instance-1")
    assert watch.ended() == [1]
    watch.hear(InstanceLost(1))
    assert watch.states() == {"lost": 1, "ready": 1}
    assert watch.ended() == [], "it is told once"
    launcher.count_restart("instance-1")
    assert watch.ended() == [], "it had not been ready"
    watch.get_ready(1)
    assert watch.ended() == []


def test_an_instance_that_got_ready_before_the_look_is_the_next_life() -> None:
    watch = Watch(instances=2)
    launcher = LauncherRecord(watch.board, ("instance-0", "instance-1"))
    watch.get_ready(0, 1)
    launcher.count_restart("instance-0")
    watch.get_ready(0)
    assert watch.ended() == []


def test_the_launchers_counts_are_not_read_in_every_turn() -> None:
    watch = Watch(instances=2)
    launcher = LauncherRecord(watch.board, ("instance-0", "instance-1"))
    watch.get_ready(0, 1)
    assert watch.ended() == []
    launcher.count_restart("instance-0")
    assert watch.watch.ended() == [], "it has just looked"
    assert watch.ended() == [0]


def test_a_single_instance_has_no_record() -> None:
    watch = Watch(instances=1)
    watch.get_ready(0)
    assert watch.run() == []
    assert watch.states() == {"ready": 1}
