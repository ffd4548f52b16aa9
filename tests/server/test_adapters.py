"""LoRA adapters of the bundled model through a real server: versions that come while requests run, an
instance that dies, moves, and directories that can't be served.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.peft_adapters import save_adapter
from tests.support.server.peft_texts import text_of_peft
from tests.support.server.serving import ROOT, Gapless, wait_for
from tests.support.shuffle import SHUFFLE

# PEFT asks transformers by an older name
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

# longer than two KV blocks, which requests with the same prompt could share
PROMPT = "def read_all_lines(self, path, encoding, errors):\n    " + "value = self.value + 1\n    " * 12
NUM_TOKENS = 40
ASKED: dict[str, Any] = {"text_input": PROMPT, "max_tokens": NUM_TOKENS, "min_tokens": NUM_TOKENS}


@pytest.fixture(scope="module")
def model() -> Any:
    made = AutoModelForCausalLM.from_pretrained(ROOT / "models/bundled", dtype=torch.float32)
    made.config.architectures = [type(made).__name__]
    return made


@pytest.fixture(scope="module")
def directory(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    save_adapter(model, root / "law" / "1", rank=4, seed=1)
    save_adapter(model, root / "poems", rank=8, seed=2)
    save_adapter(model, root / "7", rank=32, seed=3)
    config = save_adapter(model, root / "broken", rank=4, seed=4) / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))
    return root


@pytest.fixture(scope="module")
def gapless(directory: Path) -> Iterator[Gapless]:
    """Two adapters fit at a time."""
    with Gapless(
        **{
            "model.dtype": "float32",
            "adapters.directory": directory,
            "adapters.max_loaded": 2,
        }
    ) as served:
        yield served


def text(gapless: Gapless, **asked: Any) -> str:
    answer = gapless.generate(**{**ASKED, **asked})
    assert "error" not in answer, answer
    return str(answer["text_output"])


def test_openais_clients_ask_for_an_adapter_as_for_a_model(gapless: Gapless) -> None:
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{gapless.front_port}/v1", api_key="none", max_retries=0
    ) as sdk:
        parents = {model.id: model.parent for model in sdk.models.list()}
        assert parents == {"bundled": None, **dict.fromkeys(("law", "poems", "7"), "bundled")}
        sampling: Any = {"temperature": 0, "max_tokens": NUM_TOKENS, "extra_body": {"min_tokens": NUM_TOKENS}}
        for name, asked in (
            ("poems", {"lora_name": "poems"}),
            ("law@1", {"lora_name": "law"}),
            ("bundled", {}),
        ):
            answer = sdk.completions.create(model=name, prompt=PROMPT, **sampling)
            assert (answer.model, answer.choices[0].text) == (name, text(gapless, **asked))
        with pytest.raises(openai.NotFoundError):
            sdk.completions.create(model="broken", prompt=PROMPT)


def test_a_version_that_comes_while_requests_run_changes_no_other_answer(
    gapless: Gapless, directory: Path, model: Any
) -> None:
    """The base, A, A's second version, B and the base again: no answer uses the blocks of another."""
    base, first = text(gapless), text(gapless, lora_name="law")
    client = gapless.grpc()
    running = client.ask("running", **{**ASKED, "max_tokens": 150, "min_tokens": 150}, lora_name="law")
    client.read_until(lambda: running.chunks > 1)
    save_adapter(model, directory / "new", rank=32, seed=5)
    (directory / "new").rename(directory / "law" / "2")
    wait_for(lambda: "error" not in gapless.generate(**ASKED, lora_name="law@2"), 60)
    second, poems = text(gapless, lora_name="law"), text(gapless, lora_name="poems")
    client.finish()
    client.close()
    assert running.text.startswith(first), "it keeps its version"
    assert len({base, first, second, poems}) == 4
    versions = {"law/1": first, "law/2": second, "poems": poems}
    for name, found in versions.items():
        assert found == text_of_peft(directory / name, PROMPT, NUM_TOKENS), name
    assert text(gapless) == base
    assert text(gapless, lora_name="law@1") == first
    assert text(gapless, lora_name="law@2") == second
    assert text(gapless, lora_name="poems") == poems
    assert gapless.metrics()["gapless_adapters_loaded"] == 2


@pytest.mark.slow
def test_a_killed_instance_changes_no_answer_with_an_adapter(gapless: Gapless, directory: Path) -> None:
    """16 streams over the base and adapters of ranks 4, 8 and 32; two fit at a time. The texts are PEFT's."""
    inputs: list[dict[str, Any]] = [
        {
            **ASKED,
            "text_input": f"# {n % 4}\n{PROMPT}",
            "max_tokens": 100,
            "min_tokens": 100,
            **({"lora_name": name} if name else {}),
        }
        for n, name in enumerate(["", "law@1", "poems", "7"] * 4)
    ]
    undisturbed = [gapless.generate(**each)["text_output"] for each in inputs[:16]]
    client = gapless.grpc()
    answers = [client.ask(f"{n}", **each) for n, each in enumerate(inputs)]
    client.read_until(lambda: sum(answer.chunks > 2 for answer in answers) >= 6)
    gapless.kill(gapless.instance_pid())
    assert text(gapless, lora_name="7"), "the door knows the adapters while the instance starts again"
    client.finish(120)
    client.close()
    assert [answer.error for answer in answers] == [""] * 16
    assert [answer.text for answer in answers] == undisturbed
    for each, found in zip(inputs[1:4], undisturbed[1:4], strict=True):
        path = directory / each["lora_name"].replace("@", "/")
        assert found == text_of_peft(path, each["text_input"], each["max_tokens"]), path


def test_an_adapter_is_asked_for_by_its_number(gapless: Gapless) -> None:
    assert text(gapless, lora_task_id=7) == text(gapless, lora_name="7")
    assert gapless.metrics()['gapless_adapter_requests_total{adapter="7"}'] >= 2


@pytest.mark.parametrize("name", ["jokes", "law@3", "../law", "broken"])
def test_an_adapter_that_is_not_served_is_refused_at_the_door(gapless: Gapless, name: str) -> None:
    answer = gapless.generate(**ASKED, lora_name=name)
    assert answer["status"] == 400
    assert f"lora_name = '{name}': must be one of 7, law, poems, or absent" in answer["error"]


def test_a_directory_that_cannot_be_served_is_named_with_the_reason(gapless: Gapless) -> None:
    assert "adapter broken is not served: use_dora = True: not supported" in gapless.log


@pytest.mark.slow
def test_requests_with_adapters_move_between_instances(directory: Path) -> None:
    """At random, with their KV blocks; texts are those of requests that stay."""
    with Gapless(
        **{
            "model.dtype": "float32",
            "adapters.directory": directory,
            "cluster.instances": 2,
            "cluster.policy": SHUFFLE,
        }
    ) as served:
        wait_for(lambda: served.metrics()['gapless_instances{state="ready"}'] == 2, 120)
        names = ["law@1", "poems", "7"]
        long = {"max_tokens": 200, "min_tokens": 200}
        alone = {name: text(served, lora_name=name, **long) for name in names}
        moved: dict[str, float] = {}
        for _ in range(10):  # until one has moved: moves are drawn at random, and may all be refused
            client = served.grpc()
            answers = [
                (name, client.ask(f"{name}{n}", **{**ASKED, **long}, lora_name=name))
                for name in names
                for n in (1, 2)
            ]
            client.finish(120)
            client.close()
            assert [answer.text for _, answer in answers] == [alone[name] for name, _ in answers]
            moved = {name: count for name, count in served.metrics().items() if "migrations_total" in name}
            if any(count > 0 for name, count in moved.items() if 'outcome="done"' in name):
                return
        raise AssertionError(moved)
