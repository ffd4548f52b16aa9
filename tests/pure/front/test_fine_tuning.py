"""/v1/fine_tuning/jobs by OpenAI's own client: the command line makes the jobs, and no server trains them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from front.fine_tuning import submit
from python_backends.engine.adapter_directory import CONFIG, WEIGHTS
from python_backends.finetuning import jobs, saved_states
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.jobs import Job
from python_backends.finetuning.saved_states import Place
from python_backends.settings import Settings
from tests.pure.front.conftest import BUNDLED
from tests.support.ensemble import Front

LINE = json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
OPTIONS = {
    **{"suffix": "law", "rank": 2, "alpha": 4.0, "targets": ["q_proj"]},
    **{"learning_rate": 1e-3, "steps": 8},
}
NAME = BUNDLED.name


@pytest.fixture
def trains(training: Front) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{training.url}/v1", api_key="none", max_retries=0) as asks:
        yield asks


def queued(directory: Path) -> Job:
    """A job that stands there as if the command line had made it."""
    fields = {
        "model": NAME,
        "training_file": "file-1",
        "hyperparameters": {"n_epochs": 1, "batch_size": 4, "learning_rate_multiplier": 5.0},
        "seed": 3,
        "gapless": OPTIONS,
    }
    return jobs.create(directory, [Example(np.arange(4, dtype=np.int32), np.ones(4, np.bool_))], fields)


def uploaded(sdk: openai.OpenAI, *lines: str) -> str:
    return sdk.files.create(file=("train.jsonl", "\n".join(lines).encode()), purpose="fine-tune").id


def test_a_job_has_what_was_asked_for(trains: openai.OpenAI, directory: Path) -> None:
    file = uploaded(trains, LINE, LINE, LINE)
    given: Any = {"n_epochs": 2, "batch_size": "auto", "learning_rate_multiplier": 10, "rank": 4}
    made = trains.fine_tuning.jobs.create(
        model=NAME,
        training_file=file,
        suffix="law",
        seed=7,
        method={"type": "supervised", "supervised": {"hyperparameters": given}},
    )
    assert (made.object, made.status, made.model, made.training_file) == (
        "fine_tuning.job",
        "queued",
        NAME,
        file,
    )
    assert (made.seed, made.fine_tuned_model, made.finished_at) == (7, None, None)
    assert made.hyperparameters.n_epochs == 2
    assert made.hyperparameters.learning_rate_multiplier == pytest.approx(10)
    options = jobs.find(directory, made.id).options
    assert options["suffix"] == "law"
    assert options["learning_rate"] == pytest.approx(2e-3)
    assert options["rank"] == 4
    assert trains.fine_tuning.jobs.retrieve(made.id) == made
    assert [job.id for job in trains.fine_tuning.jobs.list()] == [made.id]


def test_a_bad_line_is_named(trains: openai.OpenAI) -> None:
    for line, said in (
        ('{"messages": [}', "training_file: line 2: no JSON"),
        ('{"messages": []}', "training_file: line 2: messages: must be a list of at least one message"),
    ):
        with pytest.raises(openai.BadRequestError, match=said) as error:
            trains.fine_tuning.jobs.create(model=NAME, training_file=uploaded(trains, LINE, line))
        assert (error.value.code, error.value.param) == ("invalid_training_file", "training_file")
    assert trains.fine_tuning.jobs.list().data == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": "other"}, "model = 'other': there is no such model"),
    ({"training_file": "file-unknown"}, "training_file = 'file-unknown': there is no such file"),
    ({"training_file": "../settings.json"}, "there is no such file"),
    ({"suffix": "-x"}, "suffix = '-x': must be 1 to 128 letters"),
    ({"validation_file": "file-1"}, "validation_file: jobs have none here"),
    ({"method": {"type": "dpo"}}, "method.type = 'dpo': must be supervised"),
    ({"integrations": [{"type": "wandb"}]}, "integrations: this server has none"),
    ({"hyperparameters": {"n_epochs": "two"}}, "hyperparameters.n_epochs"),
    (
        {"hyperparameters": {"learning_rate_multiplier": 1.0, "learning_rate": 1.0}},
        "learning_rate_multiplier: leave it out, or learning_rate",
    ),
]


@pytest.mark.parametrize(("fields", "said"), REFUSED)
def test_what_no_job_can_have_is_refused(trains: openai.OpenAI, fields: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"model": NAME, "training_file": "file-1", **fields}
    with pytest.raises(openai.APIStatusError) as error:
        trains.fine_tuning.jobs.create(**asked)
    assert error.value.status_code in (400, 404)
    assert said in error.value.message


def test_a_client_that_leaves_leaves_no_job(trains: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may send the same again."""
    has_begun, has_ended = threading.Event(), threading.Event()

    async def slow(*_: object) -> dict[str, Any]:
        has_begun.set()
        try:
            await asyncio.sleep(300)
        finally:
            has_ended.set()
        return {}

    file = uploaded(trains, LINE)
    monkeypatch.setattr(submit.Submitting, "submit", slow)
    with pytest.raises(openai.APITimeoutError):
        trains.with_options(timeout=1).fine_tuning.jobs.create(model=NAME, training_file=file)
    assert has_begun.is_set()
    assert has_ended.wait(30)


def test_a_process_that_makes_a_job_ends_when_nobody_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose turn has not come makes none."""
    made = list[asyncio.subprocess.Process]()
    begin = asyncio.create_subprocess_exec

    async def begun(*_: object, **named: Any) -> asyncio.subprocess.Process:
        made.append(await begin("sleep", "300", stdout=named["stdout"], stderr=named["stderr"]))
        return made[-1]

    async def left() -> None:
        submitting = submit.Submitting(Settings())
        tasks = [asyncio.create_task(submitting.submit(tmp_path / "train.jsonl", [])) for _ in range(2)]
        while not made:
            await asyncio.sleep(0.01)
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", begun)
    asyncio.run(left())
    assert [process.returncode for process in made] == [-signal.SIGKILL]


def test_a_value_that_the_command_line_refuses_has_the_name_of_the_field(trains: openai.OpenAI) -> None:
    given: Any = {"n_epochs": 0}
    with pytest.raises(openai.BadRequestError, match="n_epochs = 0: must be between 1 and 10000") as error:
        trains.fine_tuning.jobs.create(
            model=NAME, training_file=uploaded(trains, LINE), hyperparameters=given
        )
    assert error.value.param == "n_epochs"


def test_a_disk_that_fails_is_no_mistake_of_the_client() -> None:
    problem = submit._problem("/jobs/x: No space left on device", Path("/train.jsonl"), True)
    assert (problem.status, problem.code) == (500, "failed")
    assert "/jobs" not in str(problem)


def test_without_adapters_the_setting_that_is_missing_is_named(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"adapters\.directory is not set") as error:
        sdk.fine_tuning.jobs.create(model=NAME, training_file="file-1")
    assert error.value.code == "training_is_off"


def test_a_directory_of_adapters_that_can_not_be_written_is_named_before_anything_is_trained(
    trains: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(openai.BadRequestError, match=r"adapters\.directory can't be written") as error:
        trains.fine_tuning.jobs.create(model=NAME, training_file="file-1")
    assert error.value.code == "training_is_off"


def test_events_and_saved_states_are_there_page_by_page(trains: openai.OpenAI, directory: Path) -> None:
    job = queued(directory)
    for number in range(5):
        job.say(f"event {number}")
    for step in (4, 8):
        job.add_loss(step=step, loss=1 / step, tokens=9)
        saved_states.save(job.directory / "checkpoints", Place(step, 9, True), {"a": np.zeros(1)})
        os.utime(job.directory / f"checkpoints/step-{step:06d}/state.json", (1e9 + step, 1e9 + step))
    events = trains.fine_tuning.jobs.list_events(job.id, limit=2)
    assert [event.message for event in events] == [f"event {number}" for number in reversed(range(5))]
    found = list(trains.fine_tuning.jobs.checkpoints.list(job.id))
    assert [each.step_number for each in found] == [8, 4]
    assert [each.created_at for each in found] == [10**9 + 8, 10**9 + 4]
    assert [each.metrics.train_loss for each in found] == [1 / 8, 1 / 4]


def test_a_job_is_cancelled_once(trains: openai.OpenAI, directory: Path) -> None:
    job = queued(directory)
    assert trains.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="it has ended already"):
        trains.fine_tuning.jobs.cancel(job.id)


def test_a_job_succeeds_when_its_model_can_be_asked_for(trains: openai.OpenAI, directory: Path) -> None:
    """No instance finds it here: then ten seconds later."""
    job = queued(directory)
    job.end("succeeded", "succeeded", gapless={**job.options, "adapter": "law@1"})
    assert trains.fine_tuning.jobs.retrieve(job.id).status == "running"
    job.change(finished_at=1_000_000_000)
    ended = trains.fine_tuning.jobs.retrieve(job.id)
    assert (ended.status, ended.fine_tuned_model) == ("succeeded", "law@1")


@pytest.mark.parametrize("name", ["ftjob-0123", "ftjob-...", "watchers"])
def test_an_unknown_job_is_not_found(trains: openai.OpenAI, directory: Path, name: str) -> None:
    directory.mkdir(parents=True)
    with pytest.raises(openai.NotFoundError):
        trains.fine_tuning.jobs.retrieve(name)


def write_adapter(directory: Path) -> None:
    directory.mkdir(parents=True)
    for name in (CONFIG, WEIGHTS):
        (directory / name).write_text("{}")


def test_what_a_caller_of_a_job_has_published_is_removed_too(
    trains: openai.OpenAI, directory: Path, tmp_path: Path
) -> None:
    """While the job goes on, and after it."""
    shout, job = tmp_path / "adapters/shout", queued(directory)
    for number in ("1", "2", "3"):
        write_adapter(shout / number)
        job.add_adapter(f"shout@{number}")
    assert trains.models.delete("shout@1").deleted
    job.end("cancelled", "its caller has left")
    write_adapter(shout / "4")
    with pytest.raises(openai.PermissionDeniedError, match="shout@4: no job of this server has made it"):
        trains.models.delete("shout")
    assert trains.models.delete("shout@3").deleted
    assert [path.name for path in sorted(shout.iterdir()) if path.is_dir()] == ["2", "4"]


def test_the_model_of_a_job_is_removed_and_its_number_is_not_used_again(
    trains: openai.OpenAI, directory: Path, tmp_path: Path
) -> None:
    law = tmp_path / "adapters/law"
    for number in ("1", "2"):
        write_adapter(law / number)
    job = queued(directory)
    job.end("succeeded", "succeeded", gapless={**job.options, "adapter": "law@2"})
    with pytest.raises(openai.NotFoundError, match="model = 'law@': there is no such adapter"):
        trains.models.delete("law@")
    for name in ("law@1", "law"):
        with pytest.raises(openai.PermissionDeniedError, match="law@1: no job of this server has made it"):
            trains.models.delete(name)
    assert trains.models.delete("law@2").deleted
    assert [path.name for path in sorted(law.iterdir()) if path.is_dir()] == ["1"]
    assert (law / "2").exists(), "the next version is the third"
    for name in ("law@", "law@2", "law@3", "...", "law@0", "law@1@1"):
        with pytest.raises(openai.NotFoundError):
            trains.models.delete(name)
    write_adapter(tmp_path / "adapters/poems")
    with pytest.raises(openai.PermissionDeniedError, match="poems: no job of this server has made it"):
        trains.models.delete("poems")
    with pytest.raises(openai.PermissionDeniedError, match=f"{NAME} is the model that is served"):
        trains.models.delete(NAME)
    assert len(list((law / "1").iterdir())) == 2
