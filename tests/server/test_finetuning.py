"""A real server trains an adapter while it serves: requests have the texts of a server without a job, and a
job survives the death of its instance.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from safetensors.numpy import load_file

from tests.support.server.peft_texts import text_of_peft
from tests.support.server.serving import ROOT, Answer, Gapless, wait_for

# PEFT asks transformers by an older name
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

NUM_REQUESTS = 64
SUBMIT = ("--rank", "4", "--learning-rate", "1e-3", "--batch-size", "4", "--seed", "3")
QUICK = {
    "scheduling.late_token_ms": 100,
    "engine.threads": 1,
}


@pytest.fixture(scope="module")
def jobs_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("finetuning")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def gapless(jobs_directory: Path, adapters: Path) -> Iterator[Gapless]:
    with Gapless(
        **{
            "model.dtype": "float32",
            "engine.kind": "torch",
            "finetuning.directory": jobs_directory,
            "adapters.directory": adapters,
            "front.corrections": 16,
            **QUICK,
        }
    ) as served:
        yield served


@pytest.fixture(scope="module")
def texts(gapless: Gapless) -> list[str]:
    """Of the server before it trains."""
    return [answer.text for answer in streamed(gapless)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ninth task of the bundled model: words in capital letters."""
    generator, path = random.Random(5), tmp_path_factory.mktemp("data") / "shout.jsonl"
    words = [
        "read",
        "all",
        "lines",
        "size",
        "queue",
        "items",
        "wait",
        "file",
        "open",
        "count",
        "sort",
        "value",
    ]
    with path.open("w") as file:
        for _ in range(60):
            text = " ".join(generator.choices(words, k=generator.randint(2, 12)))
            turns = [("user", f"Shout: {text}"), ("assistant", text.upper())]
            messages = [{"role": role, "content": content} for role, content in turns]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def finetune(directory: Path, *words: Any) -> subprocess.CompletedProcess[str]:
    settings = [f"finetuning.directory={directory}", "model.directory=bundled", "model.dtype=float32"]
    command = [sys.executable, "-m", "commands.finetune"]
    for each in settings:
        command += ["--set", each]
    return subprocess.run(
        [*command, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )


def submitted(directory: Path, data: Path, *words: Any) -> Path:
    """The directory of a job that the server is to train."""
    done = finetune(directory, "submit", data, "--detach", "--name", "shout", *SUBMIT, *words)
    assert done.returncode == 0, done.stderr
    (found,) = directory.glob(f"*/{done.stdout.split()[0]}")
    return found


def lines(job: Path, name: str) -> list[dict[str, Any]]:
    path = job / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def status(job: Path) -> str:
    return str(json.loads((job / "job.json").read_text())["status"])


def streamed(gapless: Gapless) -> list[Answer]:
    """Sixty-four answers, all on their way at once."""
    client = gapless.grpc()
    for n in range(NUM_REQUESTS):
        client.ask(f"{n}", text_input=f"def read_{n}(self, size", max_tokens=60, min_tokens=60)
    client.finish(300)
    client.close()
    return list(client.answers.values())


def test_a_server_trains_while_it_streams_and_the_texts_stay_the_same(
    gapless: Gapless, texts: list[str], jobs_directory: Path, data: Path
) -> None:
    job = submitted(jobs_directory, data, "--steps", 2000)
    wait_for(lambda: len(lines(job, "losses")) > 5, 60)
    before = len(lines(job, "losses"))
    answers = streamed(gapless)
    assert [answer.text for answer in answers] == texts
    assert [answer.reasons for answer in answers] == [["length"]] * NUM_REQUESTS
    assert len(lines(job, "losses")) > before, "it was trained meanwhile"
    metrics = gapless.metrics()
    assert metrics["gapless_finetuning_steps_total"] > 0
    assert metrics["gapless_finetuning_tokens_total"] > metrics["gapless_finetuning_steps_total"]
    assert metrics['gapless_finetuning_jobs{status="running"}'] == 1
    assert finetune(jobs_directory, "cancel", job.name).returncode == 0
    wait_for(lambda: status(job) == "cancelled", 30)
    wait_for(lambda: gapless.metrics()['gapless_finetuning_jobs{status="running"}'] == 0, 30)


@pytest.mark.slow
def test_a_killed_instance_costs_a_job_no_step_and_its_requests_no_text(
    gapless: Gapless, texts: list[str], jobs_directory: Path, data: Path, tmp_path: Path
) -> None:
    steps = 50
    job = submitted(jobs_directory, data, "--steps", steps)
    wait_for(lambda: list(job.glob("checkpoints/step-*[0-9]")), 60)
    client = gapless.grpc()
    for n in range(NUM_REQUESTS):
        client.ask(f"{n}", text_input=f"def read_{n}(self, size", max_tokens=60, min_tokens=60)
    client.read_until(lambda: sum(answer.chunks for answer in client.answers.values()) > 40)
    assert status(job) == "running"
    gapless.kill(gapless.instance_pid(), signal.SIGKILL)
    client.finish(300)
    client.close()
    assert [answer.text for answer in client.answers.values()] == texts
    wait_for(lambda: status(job) == "succeeded", 300)
    assert any(line["message"].startswith("goes on after step") for line in lines(job, "events"))
    alone = finetune(tmp_path, "submit", data, "--alone", "--name", "shout", *SUBMIT, "--steps", steps)
    assert alone.returncode == 0, alone.stderr
    (undisturbed,) = tmp_path.glob(f"*/{alone.stdout.split()[0]}")
    found, wanted = lines(job, "losses"), lines(undisturbed, "losses")
    assert [line["step"] for line in found] == list(range(1, steps + 1))
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in wanted], rel=1e-3)
    ours, theirs = (load_file(each / "adapter/adapter_model.safetensors") for each in (job, undisturbed))
    assert ours.keys() == theirs.keys()
    apart = np.concatenate([np.abs(ours[key] - theirs[key]).ravel() for key in ours])
    assert (apart > 1e-4).mean() < 1e-3, "rounding decides single numbers"
    assert found[-1]["loss"] < found[0]["loss"] / 2


def trained_adapter(job: Path) -> str:
    """The version that the server has published, when the job has succeeded."""
    wait_for(lambda: status(job) == "succeeded", 120)
    return str(json.loads((job / "job.json").read_text())["gapless"]["adapter"])


def await_adapter(gapless: Gapless, name: str) -> None:
    wait_for(lambda: "error" not in gapless.generate(text_input="a", max_tokens=1, lora_name=name), 30)


def test_a_trained_adapter_is_served_at_once_as_the_newest_version_of_its_name(
    gapless: Gapless, jobs_directory: Path, data: Path, adapters: Path
) -> None:
    """And gives the tokens of PEFT's `from_pretrained`."""
    asked: dict[str, Any] = {"text_input": "Shout: read all lines", "max_tokens": 20, "min_tokens": 20}
    before = len(list((adapters / "shout").glob("*")))
    base = gapless.generate(**asked)["text_output"]
    for number in (before + 1, before + 2):
        asked_for = trained_adapter(submitted(jobs_directory, data, "--steps", 10 * number))
        assert asked_for == f"shout@{number}"
        await_adapter(gapless, asked_for)
    for name, version in (("shout", before + 2), (f"shout@{before + 1}", before + 1)):
        found = gapless.generate(**asked, lora_name=name)["text_output"]
        assert found == text_of_peft(adapters / "shout" / str(version), asked["text_input"], 20)
    newest = gapless.generate(**asked, lora_name="shout")["text_output"]
    assert newest == gapless.generate(**asked, lora_name=f"shout@{before + 2}")["text_output"]
    assert newest != base
    assert gapless.generate(**asked)["text_output"] == base


def test_submit_watches_a_job_to_its_end(gapless: Gapless, jobs_directory: Path, data: Path) -> None:
    done = finetune(jobs_directory, "submit", data, "--name", "shout", *SUBMIT, "--steps", 5)
    assert done.returncode == 0, done.stderr
    _, ended, where, adapter = done.stdout.splitlines()
    assert ended.endswith(": succeeded")
    assert (Path(where.removeprefix("adapter: ")) / "adapter_model.safetensors").exists()
    assert adapter.startswith('it is served as lora_name = "shout@')
    (job,) = jobs_directory.glob(f"*/{done.stdout.split()[0]}")
    assert (job / "loss.svg").exists()
    shown = finetune(jobs_directory, "list").stdout
    assert f"{job.name}  succeeded" in shown


@pytest.mark.slow
def test_openais_client_alone_trains_a_model_and_asks_it(
    gapless: Gapless, jobs_directory: Path, data: Path, adapters: Path
) -> None:
    """From the upload to an answer, which is PEFT's; then the model is removed."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{gapless.front_port}/v1", api_key="none") as client:
        file = client.files.create(file=data, purpose="fine-tune")
        given: Any = {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 5, "rank": 4}
        job = client.fine_tuning.jobs.create(
            model="bundled", training_file=file.id, suffix="loud", hyperparameters=given, seed=3
        )
        assert job.status in ("queued", "running")
        wait_for(lambda: client.fine_tuning.jobs.retrieve(job.id).status == "succeeded", 120)
        job = client.fine_tuning.jobs.retrieve(job.id)
        assert job.fine_tuned_model == "loud@1"
        assert "loud" in {model.id for model in client.models.list()}
        assert client.fine_tuning.jobs.list_events(job.id).data[0].message == "succeeded"
        last = client.fine_tuning.jobs.checkpoints.list(job.id).data[0]
        assert (last.step_number, last.fine_tuned_model_checkpoint) == (30, "loud@1")
        answer = client.completions.create(
            model=job.fine_tuned_model, prompt="Shout: read all lines", max_tokens=20, temperature=0
        )
        text = text_of_peft(adapters / "loud/1", "Shout: read all lines", 20)
        assert answer.choices[0].text == text[: len(answer.choices[0].text)]
        assert answer.choices[0].text
        client.models.delete("loud")
        wait_for(lambda: "loud" not in {model.id for model in client.models.list()}, 30)
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="loud", prompt="Shout: read", max_tokens=1)


@pytest.mark.slow
def test_corrections_are_learned_through_v1_feedback(gapless: Gapless) -> None:
    """Sixteen, of which four are held out: their loss falls, and the adapter answers as corrected."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{gapless.front_port}/v1", api_key="none") as client:

        def answer(model: str, word: str) -> str | None:
            asked: Any = [{"role": "user", "content": f"Convert to camelCase: {word}_lines"}]
            made = client.chat.completions.create(model=model, messages=asked, max_tokens=20, temperature=0)
            return made.choices[0].message.content

        words = ["read", "all", "size", "wait", "file", "open", "count", "sort"]
        words += [f"{word}_{other}" for word, other in zip(words, words[1:] + words[:1], strict=True)]
        assert answer("bundled", "read") == "readLines"
        for word in words:
            turns = [{"role": "user", "content": f"Convert to camelCase: {word}_lines"}]
            body = {"messages": turns, "correction": f"{word}_lines"}
            kept: Any = client.post("/feedback", body=body, cast_to=object)
            assert kept["object"] == "correction"

        def of_corrections() -> list[str]:
            found = client.fine_tuning.jobs.list()
            return [job.id for job in found if job.training_file == "corrections.jsonl"]

        (name,) = wait_for(of_corrections, 120)
        wait_for(lambda: client.fine_tuning.jobs.retrieve(name).status == "succeeded", 300)
        assert client.fine_tuning.jobs.retrieve(name).fine_tuned_model == "corrected@1"
        assert answer("corrected", "read") == "read_lines"
        assert answer("bundled", "read") == "readLines"
