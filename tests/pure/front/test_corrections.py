"""/v1/feedback by OpenAI's client, over a stand-in ensemble: what is kept, and which jobs are made of it."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest

from front.corrections import store, work
from front.corrections.store import Corrections
from front.corrections.work import CorrectionWork
from front.keys import Keys
from python_backends.finetuning import jobs
from python_backends.finetuning.datasets import Example
from python_backends.settings import FrontSettings, ModelSettings, Settings
from tests.pure.front.conftest import BUNDLED
from tests.support.ensemble import Ensemble, Front

ASKED = [{"role": "user", "content": "Shout: read"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "read"}]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "LOOK_EVERY_S", 0.05)


@pytest.fixture
def taking(ensemble: Ensemble, tmp_path: Path, sections: dict[str, Any]) -> Iterator[Front]:
    """It makes a job of four corrections."""
    made = Front(ensemble, BUNDLED, tmp_path, Keys(()), corrections=4, **sections)
    yield made
    made.close()


@pytest.fixture
def client(taking: Front) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{taking.url}/v1", api_key="none", max_retries=0) as asks:
        yield asks


def sent(client: openai.OpenAI, **body: Any) -> Any:
    return client.post("/feedback", body=body, cast_to=object)


def listed(client: openai.OpenAI) -> list[Any]:
    found: Any = client.get("/feedback", cast_to=object)
    return list(found["data"])


LEARNED = {"role": "assistant", "content": "READ"}


@pytest.mark.parametrize(
    ("body", "example"),
    [
        ({"messages": ASKED, "correction": "READ"}, {"messages": [*ASKED, LEARNED]}),
        (
            {"messages": ANSWERED, "correction": "READ", "rating": "bad"},
            {"messages": [*ASKED, LEARNED]},
        ),
        (
            {"messages": [*ANSWERED, *ASKED, LEARNED], "rating": "good"},
            {"messages": [*ASKED, {**ANSWERED[1], "weight": 0}, *ASKED, LEARNED]},
        ),
        ({"prompt": "Shout: read", "correction": "READ"}, {"prompt": "Shout: read", "completion": "READ"}),
    ],
)
def test_a_correction_becomes_an_example_that_its_user_alone_may_read(
    client: openai.OpenAI, tmp_path: Path, body: dict[str, Any], example: dict[str, Any]
) -> None:
    made = sent(client, **body)
    assert (made["object"], made["held_out"], made["example"]) == ("correction", False, example)
    assert listed(client) == [made]
    (file,) = tmp_path.glob("front directory/corrections/*/*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_later_one_for_the_same_prompt_replaces_it_and_it_can_be_deleted(client: openai.OpenAI) -> None:
    first, other = sent(client, messages=ASKED, correction="a"), sent(client, prompt="b", correction="c")
    assert other["held_out"], "the second one, the sixth one, and so on"
    assert sent(client, messages=ANSWERED, correction="b")["id"] == first["id"]
    assert sorted(each["id"] for each in listed(client)) == sorted([first["id"], other["id"]])
    client.delete(f"/feedback/{first['id']}", cast_to=object)
    assert listed(client) == [other]
    for name in (first["id"], "correction-", "..."):
        with pytest.raises(openai.NotFoundError, match="there is no such correction"):
            client.delete(f"/feedback/{name}", cast_to=object)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"correction": "a"}, "prompt, messages: exactly one of them must be given"),
        ({"messages": ASKED, "prompt": "a", "correction": "a"}, "prompt, messages: exactly one"),
        ({"messages": ASKED}, "correction: must be given, or rating = good in its place"),
        ({"messages": ANSWERED, "rating": "bad"}, "correction: must be given"),
        ({"messages": ANSWERED, "rating": "good", "correction": "a"}, "correction: must be given, or"),
        (
            {"messages": ASKED, "rating": "good"},
            "messages: with rating = good the last one must be",
        ),
        ({"prompt": "a", "rating": "good"}, "rating = good: must come with messages"),
        ({"messages": ANSWERED, "rating": "+1"}, r"rating = '\+1': must be good or bad"),
        ({"id": "chatcmpl-1", "correction": "a"}, "id: the texts of requests are not kept"),
        ({"messages": [], "correction": "a"}, r"messages\[0\]: an answer needs a turn before it"),
        (
            {"messages": [{"role": "x", "content": ""}], "correction": "a"},
            r"messages\[0\].role = 'x'",
        ),
        ({"messages": [{"role": "user"}], "correction": "a"}, "content"),
        ({"prompt": "a" * 70_000, "correction": "a"}, "bytes together: must be at most 65536"),
        (
            {"prompt": "a, " * 2000, "correction": "a"},
            r"\d+ tokens: must be at most \d+, the model",
        ),
    ],
)
def test_what_can_not_be_learned_is_refused_by_its_name(
    client: openai.OpenAI, body: dict[str, Any], said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        sent(client, **body)
    assert listed(client) == []


def test_there_are_at_most_so_many(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST", 2)
    for prompt in ("a", "b", "a"):
        sent(client, prompt=prompt, correction="c")
    with pytest.raises(openai.BadRequestError, match="there are 2 corrections, the most") as error:
        sent(client, prompt="c", correction="c")
    assert error.value.code == "full"


def test_they_are_off_by_default_and_want_a_server_that_trains(
    sdk: openai.OpenAI, ensemble: Ensemble, tmp_path: Path
) -> None:
    with pytest.raises(openai.BadRequestError, match=r"front\.corrections = 0: this server takes none"):
        sent(sdk, messages=ASKED, correction="READ")
    front = Front(ensemble, BUNDLED, tmp_path / "other", Keys(()), corrections=4)
    client = openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0)
    with client, pytest.raises(openai.BadRequestError, match=r"adapters\.directory is not set"):
        sent(client, messages=ASKED, correction="READ")
    front.close()


class Submitting:
    """Remembers its training data, and makes a job as the command line does."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.asked: list[tuple[list[str], list[str], list[str]]] = []  # learned, held out, options
        self.meanwhile: Callable[[], None] = lambda: None  # while it makes a job

    async def submit(self, file: Path, options: list[str]) -> dict[str, Any]:
        (held_out,) = [Path(each[11:]) for each in options if each.startswith("--held-out=")]
        learned, measured = (
            [json.loads(line)["prompt"] for line in path.read_text().splitlines()]
            for path in (file, held_out)
        )
        assert {stat.S_IMODE(path.stat().st_mode) for path in (file, held_out)} == {0o600}
        self.asked.append((learned, measured, [each for each in options if "held-out" not in each]))
        self.meanwhile()
        fields = {
            "model": BUNDLED.name,
            "training_file": file.name,
            "hyperparameters": {"n_epochs": 8, "batch_size": 4, "learning_rate_multiplier": 5.0},
            "seed": 0,
            "gapless": {
                **{"suffix": "corrected", "rank": 2, "alpha": 4.0, "targets": ["q_proj"]},
                **{"learning_rate": 1e-3, "steps": 8},
            },
        }
        example = Example(np.arange(4, dtype=np.int32), np.ones(4, np.bool_))
        return jobs.create(self._directory, [example], fields).fields


class Looking:
    """CorrectionWork that makes a job of four corrections, with a clock that the tests move."""

    def __init__(self, directory: Path, sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        model = ModelSettings(directory=str(BUNDLED))
        settings = Settings(model=model, front=FrontSettings(corrections=4), **sections)
        self.corrections, self.jobs = Corrections(directory), jobs.jobs_directory(settings)
        self.submitting, self.model = Submitting(self.jobs), SimpleNamespace(adapters=())
        self._work: Any = CorrectionWork(settings, self.model, self.corrections, self.submitting)  # type: ignore[arg-type]
        self.now_s = 1e9
        for module in (store, work):
            monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: self.now_s))

    def add(self, *prompts: str) -> None:
        for prompt in prompts:
            self.corrections.add(prompt, {"prompt": prompt, "completion": "x"})

    def look(self) -> None:
        """A while later."""
        self.now_s += 5.0
        asyncio.run(self._work._look())


@pytest.fixture
def looking(tmp_path: Path, sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Looking:
    return Looking(tmp_path / "corrections", sections, monkeypatch)


def test_those_that_come_while_a_job_is_made_count_for_the_next_one(looking: Looking) -> None:
    """Also those of the second in which it looks, and also if the job is deleted."""
    looking.add("a", "b", "c", "d")
    looking.now_s += 4.6  # a look is at the end of 5 s
    looking.add("e")
    looking.now_s -= 4.6

    def meanwhile() -> None:
        looking.add("f", "g", "h")
        looking.now_s += 60.0

    looking.submitting.meanwhile = meanwhile
    looking.look()
    learned, held_out, _ = looking.submitting.asked.pop()
    assert sorted([*learned, *held_out]) == ["a", "b", "c", "d"]
    (job,) = jobs.all_jobs(looking.jobs)
    looking.look()
    assert looking.submitting.asked == [], "the one before has not ended"
    job.end("failed", "failed")
    job.delete()
    looking.look()
    learned, held_out, _ = looking.submitting.asked.pop()
    assert sorted([*learned, *held_out]) == ["a", "b", "c", "d", "e", "f", "g", "h"]
    for newest in jobs.all_jobs(looking.jobs):
        newest.end("succeeded", "succeeded")
        newest.delete()
    looking.look()
    assert looking.submitting.asked == [], "f, g and h alone are later than the look"


def test_enough_new_ones_become_a_job_that_goes_on_from_the_adapter_before(
    looking: Looking, tmp_path: Path
) -> None:
    corrections, submitting = looking.corrections, looking.submitting

    def add(*prompts: str) -> None:
        looking.add(*prompts)
        looking.look()

    add("a", "b", "c")
    assert submitting.asked == []
    add("d")
    learned, held_out, options = submitting.asked.pop()
    assert (sorted(learned), held_out) == (["a", "c", "d"], ["b"])
    assert options == ["--epochs=8", "--learning-rate=1e-3", "--name=corrected"]
    assert list((tmp_path / "corrections").glob("*.jsonl")) == [], "the texts are in one place"
    (job,) = jobs.all_jobs(looking.jobs)
    add("e", "f", "g", "h")
    assert submitting.asked == [], "the one before has not ended"
    job.end("succeeded", "succeeded")
    corrections.delete(corrections.add("h", {"prompt": "h", "completion": "x"}).id)
    add()
    assert submitting.asked == [], "three are new"
    looking.model.adapters = (SimpleNamespace(name="corrected"),)
    add("h")
    learned, held_out, options = submitting.asked.pop()
    assert (sorted(learned), sorted(held_out)) == (["a", "c", "d", "e", "g", "h"], ["b", "f"])
    assert options[-1] == "--from=corrected"


def test_the_command_line_makes_the_job(client: openai.OpenAI, tmp_path: Path) -> None:
    for prompt in ("a", "b", "c", "d"):
        sent(client, prompt=prompt, correction="READ")
    until, found = time.monotonic() + 240, list[Path]()
    while not found and time.monotonic() < until:
        time.sleep(0.2)
        found = [path for path in tmp_path.glob("finetuning/*/ftjob-*") if not path.suffix]
    job = jobs.Job(found[0])
    assert (job.fields["training_file"], job.fields["validation_file"]) == (
        "corrections.jsonl",
        "held_out.jsonl",
    )
    assert job.held_out is not None
    assert (len(job.examples), len(job.held_out)) == (3, 1)
    assert job.options["suffix"] == "corrected"
    assert stat.S_IMODE(found[0].stat().st_mode) == 0o700
