"""Every file in examples/, run as a user runs it, against one server with what all of them need."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.support.server.serving import BUSY, ROOT, Gapless, wait_for
from tests.support.tinker_sdk import TINKER

EXAMPLES = ROOT / "examples"
OF_ITS_OWN = {"tinker_steps.py": TINKER}  # packages that are in a folder of their own, if they are installed
PROGRAMS = {".py": sys.executable, ".sh": "bash", ".mjs": "node"}  # by the end of a file's name
CITIES = ["Oslo", "Paris", "Cairo"]
CALL = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}},
    "required": ["city"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "country": {"type": "string", "maxLength": 20},
        "people": {"type": "integer", "minimum": 0, "maximum": 50_000_000},
        "climate": {"enum": ["cold", "mild", "hot"]},
    },
    "required": ["name", "country", "people", "climate"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Settings that the server and `finetune.py` share."""
    made = tmp_path_factory.mktemp("examples")
    return {"adapters.directory": made / "adapters", "finetuning.directory": made / "finetuning"}


@pytest.fixture(scope="module")
def served(directories: dict[str, Path]) -> Iterator[Gapless]:
    """The model that `make serve` takes, with two instances; the adapters make the engine one that trains."""
    directories["adapters.directory"].mkdir()
    settings = {"model.directory": "auto", "model.dtype": "float32", "cluster.instances": 2}
    settings["front.corrections"] = 16
    settings["engine.threads"] = 1  # those of torch, which train, spin while they wait for each other
    settings["streams.dead_after_s"] = 60  # no instance is started again because the machine is busy
    with Gapless(**settings, **directories) as gapless:
        wait_for(lambda: gapless.metrics()['gapless_instances{state="ready"}'] == 2, 120)
        yield gapless


def printed(served: Gapless, directories: dict[str, Path], name: str) -> str:
    """What an example prints, which must end well."""
    packages = OF_ITS_OWN.get(name)
    if packages is not None and not packages.exists():
        pytest.skip(f"build/set-up {packages.name} was not asked for")
    program = shutil.which(PROGRAMS[Path(name).suffix])
    if program is None:
        pytest.skip(f"{PROGRAMS[Path(name).suffix]} is not installed")
    front = f"http://127.0.0.1:{served.front_port}"
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{front}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": front,
        "ANTHROPIC_API_KEY": "none",
        "TINKER_BASE_URL": front,
        "TINKER_API_KEY": "tml-none",
        "TRITON_HTTP_URL": f"http://127.0.0.1:{served.http_port}",
        "TRITON_GRPC_URL": f"127.0.0.1:{served.grpc_port}",
        "GAPLESS_FINETUNING__DIRECTORY": str(directories["finetuning.directory"]),
        "GAPLESS_MODEL__DTYPE": "float32",
        "PYTHONPATH": str(packages or ""),
    }
    command = [program, f"examples/{name}"]
    if name == "move_request.py":  # other servers run beside this one
        command += ["--run-directory", str(served.run_directory)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=BUSY * 150, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{served.log}"
    return done.stdout


def is_text(said: str) -> None:
    assert said.strip()


def has_usage(said: str) -> None:
    assert re.fullmatch(r"[1-9]\d* \+ [1-9]\d* tokens", said.splitlines()[-1])


def is_a_city(said: str) -> None:
    jsonschema.validate(json.loads(said), CITY)


def is_a_call_with_an_answer(said: str) -> None:
    call, _, _ = said.partition("\nanswer: ")
    assert call.startswith("call: weather ")
    assert call != said
    jsonschema.validate(json.loads(call.removeprefix("call: weather ")), CALL)


def has_eight_answers(said: str) -> None:
    words = [line.partition(":")[0] for line in said.splitlines()]
    assert words == ["river", "engine", "violin", "bread", "winter", "library", "copper", "garden"]


def has_three_answers(said: str) -> None:
    models, *chunks, whole = said.strip().splitlines()
    assert json.loads(models)["data"]
    assert "data: [DONE]" in chunks
    assert json.loads(whole)["finish_reason"] in ("stop", "length")


def has_moved(said: str) -> None:
    (after,) = re.findall(
        r"^\[request \d+ is in instance [01] after .*\]$(.*)", said, re.MULTILINE | re.DOTALL
    )
    assert after.strip(), "the answer went on"


def is_of_the_adapter(said: str) -> None:
    assert 'it is served as lora_name = "no_comments@1"' in said
    assert "\nno_comments: " in said


def is_of_the_job(said: str) -> None:
    *events, answer = said.splitlines()
    assert "succeeded" in events
    assert answer.startswith("shout@1: ")


def is_of_the_corrections(said: str) -> None:
    *events, answer = said.splitlines()
    assert sum(event.startswith("the loss of the held-out examples is ") for event in events) == 2
    assert answer == "corrected@1: RIVER"


def has_learned(said: str) -> None:
    losses = [float(line.partition(": ")[2]) for line in said.splitlines() if line.startswith("loss: ")]
    answers = [line for line in said.splitlines() if line.startswith("river: ")]
    assert losses[-1] < losses[0] / 2
    assert len(answers) == 2


CHECKS: dict[str, Callable[[str], None]] = {
    "anthropic_tool.py": is_a_call_with_an_answer,
    "batch.py": has_eight_answers,
    "batch_http.py": has_eight_answers,
    "chat.mjs": is_text,
    "chat_stream.py": has_usage,
    "curl.sh": has_three_answers,
    "feedback_http.py": is_of_the_corrections,
    "finetune.py": is_of_the_adapter,
    "finetune_http.py": is_of_the_job,
    "json_schema.py": is_a_city,
    "move_request.py": has_moved,
    "tinker_steps.py": has_learned,
    "tool_chat.py": is_a_call_with_an_answer,
    "tool_responses.py": is_a_call_with_an_answer,
    "tool_triton.py": is_a_call_with_an_answer,
}


def test_every_example_is_run_and_in_the_table() -> None:
    files = sorted(path.name for path in EXAMPLES.iterdir() if path.name not in ("README.md", "__pycache__"))
    assert files == sorted(CHECKS)
    assert sorted(re.findall(r"\]\((\w+\.\w+)\)", (EXAMPLES / "README.md").read_text())) == files


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_an_example_does_what_it_shows(served: Gapless, directories: dict[str, Path], name: str) -> None:
    CHECKS[name](printed(served, directories, name))
