"""An instance trains in the time that serving leaves: the losses are those of a job alone, and the tokens of
requests are those of a server without a job.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from commands.finetune.alone import train
from python_backends.engine.cpu.library import library
from python_backends.engine.protocol import Trains
from python_backends.engine.torch.training.pack_run import PackRun
from python_backends.finetuning import pack_memory
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.examples import FILE, HELD_OUT, write
from python_backends.finetuning.jobs import Job, JobError, jobs_directory
from python_backends.finetuning.trainer import Progress
from python_backends.finetuning.watchers import announced, refusals
from python_backends.instance.build import build, build_training, spare_time, watch_jobs
from python_backends.instance.job_watch import JobWatch
from python_backends.instance.loop import Instance, Parts
from python_backends.instance.spare_time import SpareWork
from python_backends.instance.training import Training
from python_backends.nouns.load import Load, TrainingLoad
from python_backends.nouns.messages import Submit
from python_backends.nouns.request import Request, Sampling
from python_backends.nouns.step import StepPlan
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.state.blocks import BlockPool
from python_backends.settings import (
    ROOT,
    EngineSettings,
    FinetuningSettings,
    ModelSettings,
    SchedulingSettings,
    Settings,
)
from tests.cpu.test_finetuning import new_job, weights
from tests.support.finetuning_jobs import examples
from tests.support.instance_link import Link
from tests.support.tiny_models import VOCABULARY, TinyModel
from tests.support.toy_engine import TOY

NUM_REQUESTS = 12
BY: dict[str, dict[str, Any]] = {"torch": {}}
if library() is not None:
    BY["layers"] = {"block_tokens": 32}
WAIT_S = 120


class Clients(Link):
    """Its inbox is what tests have put there since the last turn."""

    inbox: list[Any]

    def receive(self, timeout_s: float) -> list[Any]:
        inbox, self.inbox = self.inbox, []
        return inbox


class Server:
    """One instance without its process; `turn` also looks for jobs in `directory`. Its KV blocks are no
    numbers at first, and training leaves such: what was not written is not to be read.
    """

    def __init__(
        self, tiny: TinyModel, directory: Path, other: SpareWork | None = None, **finetuning: Any
    ) -> None:
        self.settings = settings(tiny, **finetuning)
        self.scheduler, self.engine = build(self.settings)
        blocks: torch.Tensor = cast(Any, self.engine).cache.blocks
        blocks[: self.scheduler.blocks.num_blocks] = float("nan")
        self.link = Clients([])
        training = build_training(self.settings, self.engine, self.scheduler)
        assert training is not None
        self.training: Training = training
        parts = Parts(spare_time=spare_time(self.settings, training, other))
        self.instance = Instance(self.scheduler, self.engine, self.link, lambda _: None, parts=parts)
        self.watch = JobWatch(directory, training, "", lambda: None)

    def turn_until(self, is_done: Callable[[], bool]) -> None:
        until_s = time.monotonic() + WAIT_S
        while not is_done():
            assert time.monotonic() < until_s
            self.watch.look()
            self.instance.turn()

    def train(self, *jobs: Job) -> None:
        self.turn_until(lambda: not self.training.has_work and all(ended(job) for job in jobs))

    def close(self) -> None:
        self.training.close()
        self.engine.close()


def settings(
    tiny: TinyModel, engine: dict[str, Any] | None = None, late_token_ms: float = 200.0, **finetuning: Any
) -> Settings:
    return replace(
        tiny.settings(**(engine or {})),
        scheduling=SchedulingSettings(late_token_ms=late_token_ms),
        finetuning=FinetuningSettings(**finetuning),
    )


def ended(job: Job) -> bool:
    return Job(job.directory).status in ("succeeded", "failed", "cancelled")


def requests() -> list[Submit]:
    generator = np.random.default_rng(8)
    lengths = generator.integers(4, 90, NUM_REQUESTS)
    return [
        Submit(
            Request(number, generator.integers(0, VOCABULARY, length).astype(np.int32), Sampling(40)),
            np.zeros(0, np.int32),
            0,
        )
        for number, length in enumerate(lengths.tolist())
    ]


def served(server: Server) -> dict[int, list[int]]:
    """Requests come a few at a time, while others decode."""
    coming = requests()
    while coming:
        server.link.inbox += [coming.pop(0)]
        for _ in range(5):
            server.watch.look()
            server.instance.turn()
    server.turn_until(lambda: server.link.num_ended == NUM_REQUESTS)
    return server.link.answers


def assert_like(job: Job, undisturbed: Job) -> None:
    """Losses without a gap or a double, and the same adapter, within 1e-4. Other cuts round otherwise, and
    AdamW makes a whole step of a gradient that is all rounding: 5 numbers in 10,000 may differ more.
    """
    found, expected = job.losses, undisturbed.losses
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in expected], rel=1e-4)
    ours, theirs = (
        torch.cat([each.flatten() for each in weights(one).values()]) for one in (job, undisturbed)
    )
    apart = (ours - theirs).abs()
    assert float((apart > 1e-4).float().mean()) <= 5e-4
    assert float(apart.max()) < 5e-3


@pytest.fixture(scope="module")
def undisturbed(tiny: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job of 12 steps, trained alone."""
    job, one = new_job(tmp_path_factory.mktemp("alone"), steps=12), tiny("llama_grouped")
    train(job, settings(one))
    return job


@pytest.mark.parametrize("by", BY)
def test_a_job_that_is_trained_while_serving_has_the_losses_of_one_alone_and_texts_stay_the_same(
    one: TinyModel, undisturbed: Job, tmp_path: Path, by: str
) -> None:
    idle = Server(one, tmp_path / "none", engine=BY[by])
    expected = served(idle)
    idle.close()
    server, job = Server(one, tmp_path, engine=BY[by]), new_job(tmp_path, steps=12)
    assert (cast(Any, server.engine)._layer_steps is not None) == (by == "layers")
    assert served(server) == expected
    assert len(job.losses) > 0, "it was trained while requests decoded"
    server.train(job)
    server.close()
    assert Job(job.directory).status == "succeeded"
    assert_like(job, undisturbed)
    assert (job.directory / "adapter" / "adapter_model.safetensors").exists()
    assert [event["message"] for event in job.events] == ["started", "succeeded"]


class Counting(SpareWork):
    has_work, count = True, 0

    def work(self, slack_s: float, plan: StepPlan | None) -> bool:
        self.count += 1
        return True


def test_other_work_may_stand_between_steps_as_well(one: TinyModel, undisturbed: Job, tmp_path: Path) -> None:
    other, job = Counting(), new_job(tmp_path, steps=12)
    server = Server(one, tmp_path, other)
    server.train(job)
    before = other.count
    served(server)
    server.close()
    assert_like(job, undisturbed)
    assert other.count > before > 0


@pytest.mark.parametrize(("by", "blocks"), [("torch", 80), *([("layers", 21)] if "layers" in BY else [])])
def test_requests_take_the_memory_of_a_pack_and_no_text_or_loss_changes(
    one: TinyModel,
    undisturbed: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    blocks: int,
) -> None:
    """Most blocks are borrowed, and four requests need more than the others."""
    monkeypatch.setattr(pack_memory, "MEMORY_SHARE", 1.0)
    few = {
        "engine": BY[by] | {"kv_blocks": blocks},
        "late_token_ms": 1.0,  # so the pack is not done before requests need its blocks
    }
    idle = Server(one, tmp_path / "none", **few)
    expected = served(idle)
    idle.close()
    server, job = Server(one, tmp_path, **few), new_job(tmp_path, steps=12)
    while not (server.scheduler.blocks.num_borrowed and server.training.has_work):
        server.watch.look()
        server.instance.turn()
    assert server.scheduler.load().num_borrowed_blocks == server.scheduler.blocks.num_borrowed
    assert served(server) == expected
    server.train(job)
    server.scheduler.check_integrity()
    wasted = sum(report.wasted_tokens for report in reports(server))
    server.close()
    assert server.scheduler.blocks.num_borrowed == 0
    assert wasted > 0, "a pack had to give way"
    assert_like(job, undisturbed)


def test_what_is_kept_is_as_much_as_fits(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole layers are computed again where there are few blocks; the losses are the same."""
    jobs, most, borrow = [], [], BlockPool.borrow
    for blocks in (200, 34):
        counts: list[int] = []

        def borrowing(pool: BlockPool, count: int, tell: Any, counts: list[int] = counts) -> Any:
            counts.append(count)
            return borrow(pool, count, tell)

        monkeypatch.setattr(BlockPool, "borrow", borrowing)
        monkeypatch.setattr(pack_memory, "MEMORY_SHARE", 0.9)
        server = Server(one, tmp_path / str(blocks), engine={"kv_blocks": blocks})
        jobs.append(new_job(tmp_path / str(blocks), steps=5))
        server.train(jobs[-1])
        most.append(max(counts))
        server.close()
    assert most[0] > 2 * most[1] > 0
    assert [line["loss"] for line in jobs[0].losses] == pytest.approx(
        [line["loss"] for line in jobs[1].losses], rel=1e-4
    )


def test_a_job_waits_while_requests_hold_the_memory_and_can_be_cancelled_meanwhile(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlotScheduler, "check_integrity", lambda scheduler: None)  # no sequence holds these
    server = Server(one, tmp_path, engine={"kv_blocks": 80})
    held = server.scheduler.blocks.allocate(79)
    jobs = [new_job(tmp_path, steps=5) for _ in range(2)]
    server.turn_until(lambda: server.training.patience_s > 0 and server.training.has_work)
    for _ in range(5):
        server.instance.turn()
    assert not any(job.losses for job in jobs)
    Job(jobs[0].directory).cancel()
    Job(jobs[1].directory).cancel()
    server.train(*jobs)
    server.scheduler.blocks.drop(held)
    server.close()
    assert [Job(job.directory).status for job in jobs] == ["cancelled", "cancelled"]


@pytest.mark.parametrize(("name", "file"), [("example", FILE), ("held-out example", HELD_OUT)])
def test_an_example_for_which_there_is_never_memory_fails_its_job_at_its_beginning(
    one: TinyModel, tmp_path: Path, name: str, file: str
) -> None:
    """By its number."""
    server, job = Server(one, tmp_path, engine={"kv_blocks": 40}), new_job(tmp_path, 5, held_out=5)
    long = Example(np.arange(300, dtype=np.int32) % VOCABULARY, np.ones(300, np.bool_))
    write(job.directory / file, [*examples(39), long])
    server.train(job)
    server.close()
    said = Job(job.directory).fields["error"]["message"]
    assert said.startswith(f"{name} 40 of 300 tokens takes ")
    assert "engine.kv_blocks" in said
    assert not job.losses
    assert not job.held_out_losses


def test_two_jobs_share_what_there_is_and_more_wait(one: TinyModel, tmp_path: Path) -> None:
    server = Server(one, tmp_path)
    jobs = [new_job(tmp_path, steps=9) for _ in range(3)]
    server.turn_until(lambda: len(jobs[0].losses) + len(jobs[1].losses) + len(jobs[2].losses) >= 10)
    counts = sorted(len(job.losses) for job in jobs)
    assert counts[0] == 0, "it waits for a place"
    assert counts[2] - counts[1] <= 2
    server.train(*jobs)
    server.close()
    assert [line["loss"] for line in jobs[0].losses] == pytest.approx(
        [line["loss"] for line in jobs[2].losses], rel=1e-4
    )


def test_a_job_that_begins_has_its_place_already(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To begin takes a while, in which the thread that finds jobs may look for more of them."""
    monkeypatch.setattr("python_backends.instance.training.MAX_JOBS", 1)
    server = Server(one, tmp_path)
    jobs = [new_job(tmp_path, steps=3) for _ in range(2)]
    assert isinstance(server.engine, Trains)
    start = server.engine.start_training

    def looking_meanwhile() -> Any:
        new_adapter = start()

        def look_meanwhile(*of: Any) -> Any:
            server.watch.look()
            return new_adapter(*of)

        return look_meanwhile

    monkeypatch.setattr(server.engine, "start_training", looking_meanwhile)
    server.watch.look()
    server.training.work(0.0, None)
    assert len(server.training._running) == 1
    server.train(*jobs)
    server.close()


def test_steps_that_end_while_jobs_are_counted_are_reported_all() -> None:
    """The thread that finds jobs counts them, the loop adds what was trained."""
    parts: Any = None
    training = Training(parts, parts, parts)
    training._current = SimpleNamespace(tokens=0)  # type: ignore[assignment]
    is_over, interval_s, num_steps = threading.Event(), sys.getswitchinterval(), 20_000

    def count() -> None:
        while not is_over.is_set():
            training.count_jobs((1, 0, 0, 0, 0))

    counting = threading.Thread(target=count)
    sys.setswitchinterval(1e-6)
    try:
        counting.start()
        for _ in range(num_steps):
            training._learned(Progress(step=1, num_steps=1, loss=1.0, tokens=1))
    finally:
        sys.setswitchinterval(interval_s)
        is_over.set()
        counting.join()
    report = training.report(Load()).training
    assert report is not None
    assert (report.tokens, report.steps, report.jobs) == (num_steps, num_steps, (1, 0, 0, 0, 0))


def test_that_there_are_no_jobs_any_more_is_reported_once() -> None:
    parts: Any = None
    training = Training(parts, parts, parts)
    training.count_jobs((0, 0, 1, 0, 0))
    assert training.report(Load()).training is not None
    training.count_jobs((0,) * 5)
    report = training.report(Load()).training
    assert report is not None
    assert report.jobs == (0,) * 5
    assert training.report(Load()).training is None


def test_a_bad_job_fails_alone(one: TinyModel, tmp_path: Path) -> None:
    bad, good = new_job(tmp_path, steps=5), new_job(tmp_path, steps=5)
    bad.change(gapless=bad.options | {"targets": ["w_proj"]})
    server = Server(one, tmp_path)
    answers = served(server)
    server.train(bad, good)
    server.close()
    assert len(answers) == NUM_REQUESTS
    error = Job(bad.directory).fields["error"]
    assert (error["code"], "w_proj" in error["message"]) == ("invalid_job", True)
    assert Job(good.directory).status == "succeeded"


def test_an_example_that_is_longer_than_the_server_takes_is_refused_by_number(
    one: TinyModel, tmp_path: Path
) -> None:
    job = new_job(tmp_path, steps=5)
    longest = max(len(example.ids) for example in job.examples)
    short = replace(one.settings(max_model_tokens=longest - 1), finetuning=FinetuningSettings())
    scheduler, engine = build(short)
    training = build_training(short, engine, scheduler)
    assert training is not None
    JobWatch(tmp_path, training, "", lambda: None).look()
    training.work(1.0, None)
    training.close()
    message = Job(job.directory).fields["error"]["message"]
    assert f"has {longest} tokens; the server takes {longest - 1}" in message


def test_a_fault_in_one_job_fails_it_with_its_message(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(pack: PackRun, tile: Any) -> None:
        raise RuntimeError("no memory for a tile")

    monkeypatch.setattr(PackRun, "backward", broken)
    server, job = Server(one, tmp_path), new_job(tmp_path, steps=5)
    assert len(served(server)) == NUM_REQUESTS
    server.train(job)
    server.close()
    assert Job(job.directory).fields["error"]["message"] == "no memory for a tile"


def test_a_job_can_be_cancelled_while_it_is_trained(one: TinyModel, tmp_path: Path) -> None:
    server, job = Server(one, tmp_path), new_job(tmp_path, steps=100_000)
    server.turn_until(lambda: len(job.losses) > 2)
    Job(job.directory).cancel()
    server.train(job)
    server.close()
    assert Job(job.directory).status == "cancelled"


def test_a_job_goes_on_in_the_next_instance_where_the_drained_one_has_stopped(
    one: TinyModel, undisturbed: Job, tmp_path: Path
) -> None:
    first, job = Server(one, tmp_path), new_job(tmp_path, steps=12)
    first.turn_until(lambda: len(job.losses) >= 5)
    first.close()
    trained = len(job.losses)
    second = Server(one, tmp_path)
    second.train(job)
    second.close()
    messages = [event["message"] for event in job.events]
    assert messages == ["started", "its instance ends", f"goes on after step {trained}", "succeeded"]
    assert_like(job, undisturbed)
    assert sum(report.wasted_tokens for report in reports(second)) == 0


def test_a_job_whose_instance_dies_goes_on_after_the_last_saved_state_and_the_loss_is_counted(
    one: TinyModel, undisturbed: Job, tmp_path: Path
) -> None:
    first, job = Server(one, tmp_path), new_job(tmp_path, steps=12)
    first.turn_until(lambda: len(job.losses) % 3 == 2)  # the last saved state is that of a pass, of 3 steps
    for each in first.training._running:
        each.lock.close()  # as the kernel does for a process that dies
    second = Server(one, tmp_path)
    second.train(job)
    second.close()
    assert_like(job, undisturbed)
    counted = reports(second)
    tokens = sum(line["tokens"] for line in job.losses)
    wasted = sum(report.wasted_tokens for report in counted)
    assert sum(report.tokens for report in counted) <= tokens
    assert 0 < wasted < tokens


def reports(server: Server) -> list[TrainingLoad]:
    server.turn_until(lambda: len(server.link.loads) > 3)
    return [load.training for load in server.link.loads if load.training is not None]


def test_a_job_that_every_process_dies_of_fails_in_the_end(one: TinyModel, tmp_path: Path) -> None:
    job = new_job(tmp_path, steps=5)
    for _ in range(3):
        server = Server(one, tmp_path)
        server.turn_until(lambda current=server: current.training.has_work and bool(job.events))  # type: ignore[misc]
        server.training.work(0.0, None)
        for each in server.training._running:
            each.lock.close()
    last = Server(one, tmp_path)
    last.train(job)
    last.close()
    assert "3 processes died after step 0" in Job(job.directory).fields["error"]["message"]


def test_exactly_one_of_two_instances_trains_a_job(one: TinyModel, tmp_path: Path) -> None:
    servers, job = [Server(one, tmp_path) for _ in range(2)], new_job(tmp_path, steps=6)
    for server in servers:
        server.watch.look()
    assert [server.training.has_work for server in servers] == [True, False]
    for server in servers:
        server.train(job)
        server.close()
    assert [event["message"] for event in job.events] == ["started", "succeeded"]


def test_a_job_of_submit_alone_is_left_alone(one: TinyModel, tmp_path: Path) -> None:
    job, server = new_job(tmp_path, steps=5), Server(one, tmp_path)
    job.change(gapless=job.options | {"alone": True})
    server.watch.look()
    assert not server.training.has_work
    server.close()


def test_an_engine_that_does_not_train_refuses_jobs_by_name(tmp_path: Path) -> None:
    job = new_job(tmp_path, steps=5)
    own = Settings(
        model=ModelSettings(directory=str(ROOT / "models/bundled")),
        engine=EngineSettings(kind=TOY),
        finetuning=FinetuningSettings(directory=str(tmp_path)),
    )
    scheduler, engine = build(own)
    assert not isinstance(engine, Trains)
    assert build_training(own, engine, scheduler) is None
    watch = watch_jobs(own, None, lambda: None)
    assert watch is not None
    until_s = time.monotonic() + WAIT_S
    while not (said := refusals(jobs_directory(own))):
        assert time.monotonic() < until_s
    watch.close()
    assert "the torch engine trains" in said[0]
    assert "with adapters.directory" in said[0]
    refusing = JobWatch(tmp_path, None, said[0], lambda: None)
    with announced(tmp_path, ""):
        refusing.look()
        assert Job(job.directory).status == "queued", "another instance trains it"
    refusing.look()
    assert f"engine.kind = '{TOY}'" in Job(job.directory).fields["error"]["message"]


def test_without_a_job_nothing_is_made_for_training(one: TinyModel, tmp_path: Path) -> None:
    """And where training is switched off, the loop and its engine know nothing of it."""
    server = Server(one, tmp_path)
    served(server)
    assert server.training._new_adapter is None
    assert all(load.training is None for load in server.link.loads)
    server.close()
    off = settings(one, enabled=False)
    scheduler, engine = build(off)
    assert build_training(off, engine, scheduler) is None
    assert watch_jobs(off, None, lambda: None) is None
    assert engine._trainable is None  # type: ignore[attr-defined]
    engine.close()


def test_an_offered_job_keeps_its_lock_until_it_has_ended(one: TinyModel, tmp_path: Path) -> None:
    server, job = Server(one, tmp_path), new_job(tmp_path, steps=3)
    server.watch.look()
    with pytest.raises(JobError, match="another process"), ExitStack() as stack:
        stack.enter_context(job.locked())
    server.train(job)
    with job.locked():
        server.close()
